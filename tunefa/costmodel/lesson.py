"""Lessons: what rows of measurements teach about the times of one kernel on one arch.

The model that tunefa ships stays the base, and a lesson corrects what it misses. Whether that is
better is seen on workloads that both left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tunefa.costmodel import accuracy, learned, learning
from tunefa.costmodel.accuracy import Predictor
from tunefa.costmodel.learned import LearnedModel
from tunefa.costmodel.training_rows import Row

LEAST_WORKLOADS = 3
"""With fewer workloads there is too little to learn from while one is held out."""
FOLDS = 8
"""So many models are fitted, each without some workloads, to see how good a model is on those."""


@dataclass(frozen=True)
class Lesson:
    """The result of learning from the rows of one kernel on one arch."""

    kernel: str
    arch: str
    devices: tuple[str, ...]
    workloads: int
    """The number of workloads with a time."""
    new_workloads: int
    """The number of these that the shipped model was not learned from."""
    trials: int
    """The number of rows with a time."""
    failures: int
    before: float | None = None
    """The error of the shipped model (see `accuracy.error`); None where nothing was learned."""
    after: float | None = None
    """The error of the learned model, on workloads that it was not learned from."""
    model: LearnedModel | None = None
    """The model to keep; None if none is better than the one that is shipped."""
    why_not: str = ""
    """The reason that no model is kept, in words."""


def learn(rows: Sequence[Row], on_fit: Callable[[], None] = lambda: None) -> Lesson:
    """Returns the lesson of the rows of one kernel on one arch.

    Errors are those on workloads that the shipped model was not learned from either. `on_fit` is
    called after each fit. There are `fits` of them.
    """
    taken, timed = _summary(rows), [row for row in rows if row.time_us is not None]
    if taken.new_workloads < LEAST_WORKLOADS:
        return replace(taken, why_not=f"at least {LEAST_WORKLOADS} new workloads are needed")
    base = learned.shipped(taken.kernel, taken.arch)
    new = [row for row in timed if not _is_known(row, base)]
    known = [row for row in timed if _is_known(row, base)]

    def fit(some: Sequence[Row]) -> LearnedModel:
        model = learning.fit([*known, *some], base)
        on_fit()
        return model

    before = accuracy.by_case(new, predictor(base))
    after = accuracy.held_out(new, lambda some: predictor(fit(some)), _workload, FOLDS)
    taken = replace(taken, before=accuracy.error(before), after=accuracy.error(after))
    if accuracy.error(after) > accuracy.error(before):
        return replace(taken, why_not="what tunefa ships is better")
    analytic = accuracy.by_case(new, predictor(None))
    model = learning.calibrated(fit(new), after.values(), analytic.values())
    return replace(taken, model=model)


def fits(rows: Sequence[Row]) -> int:
    """Returns how many models `learn` fits."""
    count = new_workloads(rows)
    return 0 if count < LEAST_WORKLOADS else min(count, FOLDS) + 1


def predictor(model: LearnedModel | None) -> Predictor:
    """Returns the predictions of a model; None is the analytic model alone."""
    return lambda rows: learning.times_us(model, rows)


def new_workloads(rows: Sequence[Row]) -> int:
    """Returns the number of workloads with a time that the shipped model was not learned from."""
    return _summary(rows).new_workloads


def _summary(rows: Sequence[Row]) -> Lesson:
    case = rows[0].case
    base = learned.shipped(case.kernel.name, case.arch.name)
    timed = [row for row in rows if row.time_us is not None]
    return Lesson(
        case.kernel.name,
        case.arch.name,
        devices=tuple(sorted({row.case.device.name for row in rows})),
        workloads=len({_workload(row) for row in timed}),
        new_workloads=len({_workload(row) for row in timed if not _is_known(row, base)}),
        trials=len(timed),
        failures=len(rows) - len(timed),
    )


def _is_known(row: Row, base: LearnedModel | None) -> bool:
    """Whether a model was learned from this workload, and from the device."""
    if base is None:
        return False
    workloads, devices = (base.provenance.get(name, ()) for name in ("workloads", "devices"))
    return _workload(row) in workloads and row.case.device.name in devices


def _workload(row: Row) -> str:
    return str(row.case.workload)
