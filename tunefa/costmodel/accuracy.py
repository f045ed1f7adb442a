"""The agreement of predicted with measured times, on workloads that were not learned from."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from tunefa.costmodel.training_rows import Row, place

NEAR_BEST = 0.3
"""Errors are those of configs that are at most so much slower than the best. Slower ones are never
chosen, and their times are of no interest."""
LEAST_TENTH = 8
"""The best tenth has at least so many configs."""

Times = Sequence[float] | npt.NDArray[np.float64]
Predictor = Callable[[Sequence[Row]], Times]
"""Returns the predicted times of rows of one case, in us."""


@dataclass(frozen=True)
class Accuracy:
    """The agreement of the predicted times of configs with the measured ones of one case."""

    configs: int
    rank_correlation: float
    """Spearman's, over all configs."""
    best_tenth: float
    """Spearman's, over the tenth of the configs that were measured to be the fastest."""
    pick_over_best: float
    """The measured time of the config with the lowest prediction, over the best measured time. Of
    several with the lowest prediction, it is the mean time."""
    level: float
    """The mean of log(measured / predicted), over configs near the best."""
    spread: float
    """The standard deviation of log(measured / predicted) about `level`."""

    @property
    def error(self) -> float:
        """The root of the mean square of log(measured / predicted)."""
        return math.hypot(self.level, self.spread)

    @property
    def comparison_sd(self) -> float:
        """The standard deviation of the error in the logarithm of two configs' ratio."""
        return math.sqrt(2.0) * self.spread


def accuracy(measured_us: Times, predicted_us: Times) -> Accuracy:
    """Returns the accuracy of the predicted times of configs. There must be at least one.

    An infinite prediction means that the config was expected not to run: it counts as the slowest.
    """
    measured, predicted = np.asarray(measured_us, float), np.asarray(predicted_us, float)
    best = measured.min()
    tenth = np.argsort(measured, kind="stable")[: max(LEAST_TENTH, len(measured) // 10)]
    counted = (measured <= (1.0 + NEAR_BEST) * best) & np.isfinite(predicted)
    errors = np.log(measured[counted] / predicted[counted]) if counted.any() else np.zeros(1)
    return Accuracy(
        configs=len(measured),
        rank_correlation=spearman(measured, predicted),
        best_tenth=spearman(measured[tenth], predicted[tenth]),
        pick_over_best=float(measured[predicted == predicted.min()].mean() / best),
        level=float(errors.mean()),
        spread=float(errors.std()),
    )


def spearman(a: Times, b: Times) -> float:
    """Returns Spearman's rank correlation; 0 where all values of one side are equal."""
    ranks = np.stack([rankdata(a), rankdata(b)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    scale = float(np.sqrt((ranks**2).sum(axis=1).prod()))
    return float((ranks[0] * ranks[1]).sum() / scale) if scale else 0.0


def held_out(
    rows: Iterable[Row],
    fit: Callable[[list[Row]], Predictor],
    key: Callable[[Row], Hashable],
    folds: int | None = None,
) -> dict[tuple[str, str], Accuracy]:
    """Returns the accuracy for each device and workload, from a model that never saw its `key`.

    Rows with one key, such as their workload, are held out together; with `folds`, several keys
    are, so that there are at most so many fits. Rows without a time are learned from only.
    """
    by_key: dict[Hashable, list[Row]] = {}
    for row in rows:
        by_key.setdefault(key(row), []).append(row)
    keys = sorted(by_key, key=str)
    count = min(len(keys), folds or len(keys))
    found: dict[tuple[str, str], Accuracy] = {}
    for fold in range(count):
        tested = set(keys[fold::count])
        predictor = fit([row for each in keys if each not in tested for row in by_key[each]])
        found |= by_case((row for each in tested for row in by_key[each]), predictor)
    return dict(sorted(found.items()))


def by_case(rows: Iterable[Row], predictor: Predictor) -> dict[tuple[str, str], Accuracy]:
    """Returns the accuracy of predicted times for each device and workload of one kernel."""
    cases: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.time_us is not None:
            cases.setdefault(place(row), []).append(row)
    return {
        each: accuracy([row.time_us or math.inf for row in own], predictor(own))
        for each, own in sorted(cases.items())
    }


def error(found: Mapping[tuple[str, str], Accuracy]) -> float:
    """Returns the error of a predicted time over several cases, each of the same weight: 0.1 means
    that log(measured / predicted) is 0.1 in the root of the mean square."""
    return math.sqrt(sum(each.error**2 for each in found.values()) / len(found))
