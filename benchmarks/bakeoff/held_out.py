"""How many evaluations `auto` needs where the learned model never saw the workload; needs no GPU.

    python -m benchmarks.bakeoff.held_out [LANDSCAPE ...]

For each landscape a model is learned from those of all other workloads of the kernel. Searches
replay the landscape with that model, and with the cost model alone. It prints the evaluations to
come within 5, 2 and 1 % of the best, in the median over the seeds. It needs scikit-learn, and
takes half a minute for each landscape.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from unittest import mock

import numpy as np
import optuna

from benchmarks.bakeoff import report, runs
from tunefa.costmodel import learned, learning, training_rows
from tunefa.costmodel.learned import LearnedModel, Trees
from tunefa.costmodel.training_rows import Row
from tunefa.store import landscape as landscapes

LANDSCAPES = Path(__file__).resolve().parent.parent / "landscapes"
SEEDS = 10


def without(rows: Sequence[Row], workload: str) -> LearnedModel:
    """Returns a model of all rows but those of a workload, on whatever device."""
    return learning.fit([row for row in rows if str(row.case.workload) != workload])


def nothing_learned(model: LearnedModel) -> LearnedModel:
    """Returns the same model with one leaf of 0: its times are those of the cost model."""
    leaf = Trees(
        count=1,
        depth=0,
        feature=np.zeros(1, np.int16),
        threshold=np.full(1, np.inf, np.float32),
        child=np.zeros((1, 2), np.int32),
        value=np.zeros(1, np.float32),
    )
    return replace(model, bias=0.0, trees=leaf)


@contextmanager
def in_use(model: LearnedModel) -> Iterator[None]:
    """Predictions are those of the model, which lies where a user's own would."""
    with tempfile.TemporaryDirectory() as home:
        model.save(learned.path(model.kernel, model.arch, Path(home) / "learned"))
        with mock.patch.dict(os.environ, {"TUNEFA_HOME": home}):
            yield


def medians(path: Path, model: LearnedModel, seeds: int) -> list[float]:
    """The evaluations of `auto` to each of `runs.TARGETS`, in the median over the seeds."""
    with in_use(model):
        course = runs.Course(landscapes.load(path))
        reached = [runs.own(course, "auto", seed) for seed in range(seeds)]
    return [
        median(report.counts([run[target] for run in reached]))
        for target in range(len(runs.TARGETS))
    ]


def main() -> None:
    """Prints a line for each landscape, and the medians of each kernel."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bakeoff.held_out",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("landscapes", nargs="*", type=Path, metavar="LANDSCAPE")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"default: {SEEDS}")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    groups = training_rows.read(training_rows.files([LANDSCAPES])).groups()
    found: dict[str, list[tuple[list[float], list[float]]]] = {}
    for path in training_rows.files(options.landscapes or [LANDSCAPES]):
        held = landscapes.load(path)
        kernel, workload = held.kernels[0], str(held.workload)
        model = without(groups[kernel, held.target.arch.name], workload)
        pair = (
            medians(path, nothing_learned(model), options.seeds),
            medians(path, model, options.seeds),
        )
        found.setdefault(kernel, []).append(pair)
        print(f"{held.target.device.name} {workload} {kernel}: {_shown(pair)}", flush=True)
    for kernel, pairs in found.items():
        sides = zip(*pairs, strict=True)
        made = [[median(counts) for counts in zip(*side, strict=True)] for side in sides]
        print(f"{kernel}, median of {len(pairs)}: {_shown(made)}")


def _shown(pair: Sequence[Sequence[float]]) -> str:
    before, after = (" / ".join(f"{count:g}" for count in each) for each in pair)
    return f"{before} evaluations with the cost model, {after} with what was learned"


if __name__ == "__main__":
    main()
