"""What a search does unless told otherwise.

Where the budget covers every feasible config, all are tried, the most promising first. Otherwise:
what is known to be good (the default, the nearest workload's winner), then as `prior` does, every
fifth turn for a neighbour of one of the three best so far. On eight landscapes of an H200 those
turns cost nothing; with no analytic model to start from, they took the median number of trials to
within 2 % of the best from over 300 to under 100.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study
from optuna.trial import FrozenTrial

from tunefa.sampler import FeasibleSampler, InOrder
from tunefa.strategies import Problem
from tunefa.strategies.prior import Prior

_POLISH_EVERY = 5
_BEST = 3


class Auto(Prior):
    """Known ones, then as `Prior`, and polish."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._known = known(self, problem)

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """The next."""
        while self._known:
            chosen = self._known.pop(0)
            if self.candidates.untried[chosen]:
                return chosen
        if (trial.number + 1) % _POLISH_EVERY == 0:
            beside = self._neighbours()
            if beside.any():
                gain = self.belief().expected_improvement()
                return self.best_of(np.where(beside, gain, -1.0))
        return super().choose(study, trial)

    def _neighbours(self) -> NDArray[np.bool_]:
        """Of every candidate, whether it is untried and one step from one of the best."""
        found = self.candidates
        right = {place: us for place, us in found.times.items() if us is not None}
        best = sorted(right, key=lambda place: right[place])[:_BEST]
        steps = np.abs(found.places[:, None, :] - found.places[best]).sum(axis=2)
        beside: NDArray[np.bool_] = found.untried & (steps == 1).any(axis=1)
        return beside


def known(of: FeasibleSampler, problem: Problem) -> list[int]:
    """Where the known configs are among the candidates, those that are feasible."""
    places = (of.candidates.find(config) for config in problem.first)
    return list(dict.fromkeys(place for place in places if place is not None))


def sampler(problem: Problem) -> FeasibleSampler:
    """Everything in order where the budget is enough for it, else `Auto`."""
    if len(problem.configs) > (problem.trials or 0):
        return Auto(problem)
    expected = [us if us > 0 else math.inf for us in problem.expected_us]
    order = sorted(range(len(expected)), key=lambda place: expected[place])
    everything = InOrder(problem, order)
    first = known(everything, problem)
    return InOrder(problem, [*first, *order])
