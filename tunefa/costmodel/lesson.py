"""Lessons: what rows of measurements teach about the times of one kernel on one arch.

The model that tunefa ships stays the base, and a lesson corrects what it misses. Whether that is
better is seen on workloads that the lesson left out.
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
    """What the rows of one kernel on one arch taught."""

    kernel: str
    arch: str
    devices: tuple[str, ...]
    workloads: int
    """The number of workloads with a time."""
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
    """Why no model is kept, in words."""


def learn(rows: Sequence[Row], on_fit: Callable[[], None] = lambda: None) -> Lesson:
    """Returns the lesson of the rows of one kernel on one arch.

    `on_fit` is called after each fit. There are `fits` of them.
    """
    taken = _summary(rows)
    if taken.workloads < LEAST_WORKLOADS:
        return replace(taken, why_not=f"at least {LEAST_WORKLOADS} workloads are needed")
    base = learned.shipped(taken.kernel, taken.arch)

    def fit(some: Sequence[Row]) -> LearnedModel:
        model = learning.fit(some, base)
        on_fit()
        return model

    timed = [row for row in rows if row.time_us is not None]
    before = accuracy.by_case(timed, predictor(base))
    after = accuracy.held_out(timed, lambda some: predictor(fit(some)), _workload, FOLDS)
    taken = replace(taken, before=accuracy.error(before), after=accuracy.error(after))
    if accuracy.error(after) > accuracy.error(before):
        return replace(taken, why_not="what tunefa ships is better")
    analytic = accuracy.by_case(timed, predictor(None))
    model = learning.calibrated(fit(timed), after.values(), analytic.values())
    return replace(taken, model=model)


def fits(rows: Sequence[Row]) -> int:
    """Returns how many models `learn` fits."""
    workloads = _summary(rows).workloads
    return 0 if workloads < LEAST_WORKLOADS else min(workloads, FOLDS) + 1


def predictor(model: LearnedModel | None) -> Predictor:
    """Returns the predictions of a model; None is the analytic model alone."""
    return lambda rows: learning.times_us(model, rows)


def workloads(rows: Sequence[Row]) -> int:
    """Returns the number of workloads that have a time."""
    return _summary(rows).workloads


def _summary(rows: Sequence[Row]) -> Lesson:
    timed = [row for row in rows if row.time_us is not None]
    return Lesson(
        rows[0].case.kernel.name,
        rows[0].case.arch.name,
        devices=tuple(sorted({row.case.device.name for row in rows})),
        workloads=len({_workload(row) for row in timed}),
        trials=len(timed),
        failures=len(rows) - len(timed),
    )


def _workload(row: Row) -> str:
    return str(row.case.workload)
