"""A search as the page shows it: from its journal, how the best time fell and where times are low.

A journal has every trial. Of these the page needs the trials that were a gain, and for each kernel
the best time of each pair of tile sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec.strict_yaml import Fields
from tunefa.spec.trial import Trial, identity
from tunefa.spec.workload import Workload

PAIRS = (("BLOCK_M", "BLOCK_N"), ("WARPGROUPS", "BLOCK_N"), ("BLOCK_N", "num_stages"))
"""The parameters of heat maps, the best first: sizes of tiles."""
LEAST_CELLS = 4
"""The fewest pairs of values with a time that make a heat map."""
Scalar = int | float | str | bool


@dataclass(frozen=True)
class Step:
    """A trial that was faster than all before it, or the last trial."""

    evaluation: int
    """Its place among the configs that the search tried, from 1."""
    best_us: float
    """The best time so far."""
    seconds: float | None = None
    """Seconds since the search began; None where its journal does not say it."""


@dataclass(frozen=True)
class Cell:
    """All configs of a kernel with the same two values."""

    row: Scalar
    column: Scalar
    best_us: float | None
    """The best time; None if all of them failed."""
    trials: int


@dataclass(frozen=True)
class HeatMap:
    """The best times over two parameters."""

    row_name: str
    column_name: str
    cells: Sequence[Cell]


@dataclass(frozen=True)
class KernelTrials:
    """The trials of one kernel in a search."""

    kernel: str
    trials: int
    failed: int
    steps: Sequence[Step]
    heat_map: HeatMap | None


@dataclass(frozen=True)
class Search:
    """One search, by its journal."""

    journal: str
    """The name of the file."""
    date: str
    workload: Workload
    arch: str
    device: str
    objective: str
    kernels: Sequence[KernelTrials]

    @property
    def measured(self) -> bool:
        """Whether its times were measured."""
        return self.objective == "measured"

    @property
    def where(self) -> str:
        """The chip and the origin of the times, in words."""
        return f"{self.device} ({self.arch}), {self.objective}, {self.date[:10]}"

    def to_data(self) -> dict[str, Any]:
        """Returns plain data, which `from_data` reads."""
        return {
            **{name: getattr(self, name) for name in _TEXTS},
            "workload": str(self.workload),
            "kernels": [_kernel_data(each) for each in self.kernels],
        }

    @classmethod
    def from_data(cls, data: Any, where: str) -> Search:
        """Reads plain data; `where` begins each message. Raises TunefaError if it is not valid."""
        fields = Fields(data, where)
        texts = {name: fields.take(name, str) for name in _TEXTS}
        workload = Workload.parse(fields.take("workload", str))
        kernels = [
            _kernel(each, f"{where}: kernels[{place}]")
            for place, each in enumerate(fields.take("kernels", list))
        ]
        fields.done()
        return cls(workload=workload, kernels=kernels, **texts)


_TEXTS = ("journal", "date", "arch", "device", "objective")


def of_trials(trials: Iterable[tuple[str, Trial, float | None]]) -> list[KernelTrials]:
    """Returns the trials of each kernel, in the order in which the kernels begin.

    Takes (kernel, trial, seconds since the search began). The first trial of a config counts: later
    ones are races, which time the best configs again.
    """
    found: dict[str, dict[object, tuple[Trial, int, float | None]]] = defaultdict(dict)
    count = 0
    for kernel, trial, seconds in trials:
        if (key := identity(trial.config)) not in found[kernel]:
            count += 1
            found[kernel][key] = (trial, count, seconds)
    return [_of_kernel(kernel, list(tried.values())) for kernel, tried in found.items()]


def _of_kernel(kernel: str, tried: Sequence[tuple[Trial, int, float | None]]) -> KernelTrials:
    steps: list[Step] = []
    best = None
    for trial, place, seconds in tried:
        time_us = trial.median_us if trial.outcome == "ok" else None
        gained = time_us is not None and (best is None or time_us < best)
        best = time_us if gained else best
        if best is not None and (gained or place == tried[-1][1]):
            steps.append(Step(place, best, seconds))
    failed = sum(trial.outcome != "ok" for trial, *_ in tried)
    return KernelTrials(kernel, len(tried), failed, steps, heat_map([trial for trial, *_ in tried]))


def heat_map(trials: Sequence[Trial]) -> HeatMap | None:
    """Returns the best times over the first pair of `PAIRS` that varies; None if none does, or if
    fewer than `LEAST_CELLS` pairs of values have a time."""
    for pair in PAIRS:
        grouped: dict[tuple[Scalar, Scalar], list[Trial]] = defaultdict(list)
        for trial in trials:
            if all(name in trial.config for name in pair):
                grouped[trial.config[pair[0]], trial.config[pair[1]]].append(trial)
        cells = [Cell(*key, _best(group), len(group)) for key, group in grouped.items()]
        timed = sum(cell.best_us is not None for cell in cells)
        varies = len({cell.row for cell in cells}) > 1 and len({cell.column for cell in cells}) > 1
        if varies and timed >= LEAST_CELLS:
            return HeatMap(*pair, sorted(cells, key=_place))
    return None


def _best(trials: Sequence[Trial]) -> float | None:
    times = [each.median_us for each in trials if each.outcome == "ok"]
    return min((us for us in times if us is not None), default=None)


def _place(cell: Cell) -> tuple[tuple[bool, float, str], ...]:
    return sort_key(cell.row), sort_key(cell.column)


def sort_key(value: Scalar) -> tuple[bool, float, str]:
    """The key that sorts numbers before texts."""
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")


def _kernel_data(kernel: KernelTrials) -> dict[str, Any]:
    held = kernel.heat_map
    return {
        "kernel": kernel.kernel,
        "trials": kernel.trials,
        "failed": kernel.failed,
        "steps": [[step.evaluation, step.best_us, step.seconds] for step in kernel.steps],
        "heat_map": held
        and {
            "row_name": held.row_name,
            "column_name": held.column_name,
            "cells": [[each.row, each.column, each.best_us, each.trials] for each in held.cells],
        },
    }


def _kernel(data: Any, where: str) -> KernelTrials:
    fields = Fields(data, where)
    name, trials = fields.take("kernel", str), fields.take("trials", int)
    failed = fields.take("failed", int)
    steps = [Step(*_row(each, _STEP, f"{where}: steps")) for each in fields.take("steps", list)]
    held = fields.take("heat_map", (dict, type(None)), None)
    fields.done()
    return KernelTrials(name, trials, failed, steps, held and _heat_map(held, where))


def _heat_map(data: Mapping[str, Any], where: str) -> HeatMap:
    fields = Fields(data, f"{where}: heat_map")
    names = fields.take("row_name", str), fields.take("column_name", str)
    listed = fields.take("cells", list)
    fields.done()
    return HeatMap(*names, [Cell(*_row(each, _CELL, f"{where}: cells")) for each in listed])


_NONE = type(None)
_STEP = ((int,), (float,), (float, _NONE))
_CELL = ((int, float, str, bool), (int, float, str, bool), (float, _NONE), (int,))


def _row(values: Any, kinds: Sequence[tuple[type, ...]], where: str) -> list[Any]:
    """Checks a list with one value for each of `kinds`."""
    if not isinstance(values, list) or len(values) != len(kinds):
        raise TunefaError(f"{where}: {values!r:.60} is no list of {len(kinds)} values")
    fields = Fields({str(place): value for place, value in enumerate(values)}, where)
    return [fields.take(str(place), kind) for place, kind in enumerate(kinds)]
