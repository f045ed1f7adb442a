"""Judges what tunefa recommends without a GPU, on 24 workloads that no landscape holds.

    python -m benchmarks.predicted predict --device h200 --out predicted.jsonl
    python -m benchmarks.predicted measure predicted.jsonl --seconds 300 --out measured.jsonl
    python -m benchmarks.predicted table measured.jsonl [FILE ...]

`predict` needs no GPU. For each workload it runs a predicted search with all kernels, as a user
does, and adds each kernel's default and the runtime's choice. Records of the very workload are left
out. `measure` needs the GPU that was predicted for. For each workload it runs a measured search
that knows the shipped records only. Then the search's winner and all that was predicted race: on
the same tensors, in interleaved rounds, with a cold L2 cache. `table` writes what was measured into
docs/model.md.

Each workload is written when it is done. If a run is interrupted, start it again: it continues.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from benchmarks.predicted import rows
from benchmarks.predicted.workloads import WORKLOADS
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # numpy comes with it, which must not be imported before `main` sets its threads
    from benchmarks.predicted.measure import Session

LEAST_S = 5.0
"""A workload is left out if there are fewer seconds for its search."""
BESIDE_S = 2.0
"""Seconds that a workload takes beside its search: its tensors, checks and the race."""
WARM_UP_S = 60.0
"""The time limit to start all processes and to compile all that was predicted."""


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line; `run` is the function of the step."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.predicted",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    steps = parser.add_subparsers(required=True, metavar="STEP")
    step = steps.add_parser("predict", help="predict for a device; needs no GPU")
    step.add_argument("workloads", nargs="*", type=Workload.parse, metavar="WORKLOAD")
    step.add_argument("--device", type=Target.named, required=True, help="such as h200")
    step.add_argument(
        "--learned-without",
        type=Target.named,
        metavar="DEVICE",
        help="use no record of this device, and a model that was learned without it",
    )
    step.add_argument("--budget", type=float, default=75.0, help="seconds; default: 75")
    step.add_argument("--workers", type=int, help="compilers at once; default: one per core")
    step.add_argument("--out", type=Path, required=True, help="append JSON lines to this file")
    step.set_defaults(run=predict)
    step = steps.add_parser("measure", help="measure what was predicted; needs the GPU")
    step.add_argument("file", type=Path, help="what `predict` has written")
    step.add_argument("--budget", type=float, default=11.0, help="seconds of search; default: 11")
    step.add_argument("--seconds", type=float, help="the time for all workloads; default: no limit")
    step.add_argument(
        "--workers",
        type=int,
        default=max(1, (os.cpu_count() or 1) - 2),
        help="compilers at once; default: one per core but two",
    )
    step.add_argument("--out", type=Path, required=True, help="append JSON lines to this file")
    step.set_defaults(run=measure)
    step = steps.add_parser("table", help="write the tables into docs/model.md")
    step.add_argument("files", nargs="+", type=Path, help="what `measure` has written")
    step.set_defaults(run=table)
    return parser.parse_args(arguments)


def predict(made: argparse.Namespace) -> None:
    """Predicts for each workload, and writes it."""
    from benchmarks.predicted.predict import Blind
    from tunefa.search.budget import Budget

    without = made.learned_without and made.learned_without.device.name
    done = {each.workload for each in rows.predictions(made.out)}
    with _home() as folder:
        blind = Blind(made.device, folder, without)
        for workload in made.workloads or map(Workload.parse, WORKLOADS):
            if str(workload) in done:
                continue

            def predicted(workload: Workload = workload) -> rows.Prediction:
                return blind.predicted(workload, Budget(seconds=made.budget), made.workers)

            _written(made.out, str(workload), predicted)


def measure(made: argparse.Namespace) -> None:
    """Measures what was predicted for each workload, and writes it."""
    from benchmarks.predicted.measure import Session
    from tunefa.compile.launch import driver
    from tunefa.compile.pool import compilers
    from tunefa.compile.workers import Workers
    from tunefa.search.request import Processes

    started = time.monotonic()
    done = {each.workload for each in rows.measurements(made.out)}
    todo = [each for each in rows.predictions(made.file) if each.workload not in done]
    target = Target.named(driver.device(0).name)
    for each in todo:
        if each.device != target.device.name:
            sys.exit(f"{made.file} is for {each.device}, and this is {target.device.name}")
    if not todo:
        sys.exit(f"nothing is left to measure: {made.out} has all workloads of {made.file}")
    with _home() as folder, compilers(made.workers) as pool, Workers(1) as bench:
        session = Session(target, Processes(bench, pool), folder)
        count = session.warm_up(todo, WARM_UP_S)
        _say(f"{count} configs were compiled ahead in {time.monotonic() - started:.0f} s")
        _measure_each(session, todo, made, started)


def _measure_each(
    session: Session, todo: Sequence[rows.Prediction], made: argparse.Namespace, started: float
) -> None:
    """Measures workloads until the time is over. If it is short, the searches share what is left
    equally; a workload whose search would get less than LEAST_S is left out."""
    from tunefa.search.budget import Budget

    for place, each in enumerate(todo):
        budget_s = made.budget
        if made.seconds is not None:
            left_s = made.seconds - (time.monotonic() - started)
            budget_s = min(budget_s, left_s / (len(todo) - place) - BESIDE_S)
            if budget_s < LEAST_S <= left_s - BESIDE_S:  # rather some workloads than none
                budget_s = LEAST_S
        if budget_s < LEAST_S:
            left = ", ".join(other.workload for other in todo[place:])
            _say(f"the time is over, so these are left out: {left}")
            return

        def measured(each: rows.Prediction = each, budget_s: float = budget_s) -> rows.Measurement:
            return session.measured(each, Budget(seconds=budget_s))

        _written(made.out, each.workload, measured)


def table(made: argparse.Namespace) -> None:
    """Writes the tables into docs/model.md, and prints them."""
    from benchmarks.predicted.table import write

    print(write([row for file in made.files for row in rows.measurements(file)]), end="")


def _written(
    out: Path, workload: str, make: Callable[[], rows.Prediction | rows.Measurement]
) -> None:
    """Makes and writes a row, and says how long it took; or says why there is none."""
    began = time.monotonic()
    try:
        row = make()
    except Exception as error:  # one workload must not cost the others their turn on a device
        _say(f"{workload}: left out: {type(error).__name__}: {error}")
        return
    rows.append(out, row)
    _say(f"{row} ({time.monotonic() - began:.1f} s)")


@contextlib.contextmanager
def _home() -> Iterator[Path]:
    """Moves the user's data and caches to an empty folder; returns that of the records in it."""
    with (
        tempfile.TemporaryDirectory(prefix="tunefa-", ignore_cleanup_errors=True) as folder,
        mock.patch.dict(os.environ, TUNEFA_HOME=folder),
    ):
        yield Path(folder) / "results"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    """Runs the step that the command line names."""
    made = options(sys.argv[1:])
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as `tunefa search` does, before numpy comes
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would print each search
    made.run(made)


if __name__ == "__main__":
    main()
