"""Judges what tunefa recommends without a GPU, on 24 workloads that no landscape holds.

    python -m benchmarks.predicted predict --device h200 --out predicted.jsonl
    python -m benchmarks.predicted predict --device h100 --learned-without h100 --models FOLDER ...
    python -m benchmarks.predicted measure predicted.jsonl --seconds 300 --out measured.jsonl
    python -m benchmarks.predicted table [FILE ...]

`predict` needs no GPU. For each workload it runs a predicted search with all kernels, as a user
does, and adds each kernel's default and the runtime's choice. Records of the very workload are left
out. `measure` needs the GPU that was predicted for. For each workload it runs a measured search
that knows the shipped records only. Then the search's winner and all that was predicted race: on
the same tensors, in interleaved rounds, with a cold L2 cache. `table` writes what was measured into
docs/model.md; without a file, what is kept in benchmarks/predicted/measured/.

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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from benchmarks.predicted import rows
from benchmarks.predicted.allowance import Allowance
from benchmarks.predicted.workloads import WORKLOADS
from tunefa.search.budget import Budget
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # numpy comes with it, which must not be imported before `main` sets its threads
    from benchmarks.predicted.measure import Session

KEPT = Path(__file__).resolve().parent / "measured"
"""The measurements of which docs/model.md has tables, compressed with xz."""
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
        help="use no record of this device, and models that were learned without it",
    )
    step.add_argument(
        "--models",
        type=Path,
        metavar="FOLDER",
        help="use these learned models, which `python -m benchmarks.model --models` has written",
    )
    _shared(step, Budget(seconds=75.0), os.cpu_count() or 1)
    step.set_defaults(run=predict)
    step = steps.add_parser("measure", help="measure what was predicted; needs the GPU")
    step.add_argument("file", type=Path, help="what `predict` has written")
    step.add_argument("--seconds", type=float, help="the time for all workloads; default: no limit")
    _shared(step, Budget(trials=100), max(1, (os.cpu_count() or 1) - 2))
    step.set_defaults(run=measure)
    step = steps.add_parser("table", help="write the tables into docs/model.md")
    step.add_argument(
        "files", nargs="*", type=Path, help="what `measure` has written; default: what is kept"
    )
    step.set_defaults(run=table)
    return parser.parse_args(arguments)


def _shared(step: argparse.ArgumentParser, budget: Budget, workers: int) -> None:
    """Adds the options of both steps that search."""
    step.add_argument(
        "--budget",
        type=Budget.parse,
        default=budget,
        help="of each search: a time such as 75s, or a number of trials; "
        f"default: {budget.trials or f'{budget.seconds:g}s'}",
    )
    step.add_argument(
        "--workers", type=int, default=workers, help=f"compilers at once; default: {workers}"
    )
    step.add_argument("--out", type=Path, required=True, help="append JSON lines to this file")


def predict(made: argparse.Namespace) -> None:
    """Predicts for each workload, and writes it."""
    from benchmarks.predicted import learning
    from benchmarks.predicted.predict import Blind

    without = made.learned_without and made.learned_without.device.name
    done = {each.workload for each in rows.predictions(made.out)}
    with _home() as folder:
        learning.install(made.models, made.device.arch.name, without)
        blind = Blind(made.device, folder, without)
        for workload in made.workloads or map(Workload.parse, WORKLOADS):
            if str(workload) in done:
                continue
            budget = Budget(made.budget.seconds, made.budget.trials)  # its seconds count from now
            make = partial(blind.predicted, workload, budget, made.workers)
            _written(made.out, str(workload), make)


def measure(made: argparse.Namespace) -> None:
    """Measures what was predicted for each workload, and writes it."""
    from benchmarks.predicted.measure import Session
    from tunefa.compile.launch import driver
    from tunefa.compile.pool import compilers
    from tunefa.compile.workers import Workers
    from tunefa.search.request import Processes

    allowance = Allowance(made.budget, made.seconds)
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
        took_s = time.monotonic() - allowance.start
        _say(f"{count} configs were compiled ahead in {took_s:.0f} s")
        _measure_each(session, todo, made.out, allowance)


def _measure_each(
    session: Session, todo: Sequence[rows.Prediction], out: Path, allowance: Allowance
) -> None:
    """Measures workloads until the time is over, and names those that are left out."""
    for place, each in enumerate(todo):
        budget = allowance.next(len(todo) - place)
        if budget is None:
            left = ", ".join(other.workload for other in todo[place:])
            _say(f"the time is over, so these are left out: {left}")
            return
        began = time.monotonic()
        _written(out, each.workload, partial(session.measured, each, budget))
        allowance.used(budget, time.monotonic() - began)


def table(made: argparse.Namespace) -> None:
    """Writes the tables into docs/model.md, and prints them."""
    from benchmarks.predicted.table import write

    files = made.files or sorted(KEPT.glob("*.jsonl.xz"))
    print(write([row for file in files for row in rows.measurements(file)]), end="")


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
