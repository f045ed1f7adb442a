"""What a search does unless told otherwise.

Where the budget covers every feasible config, all are tried, the most promising first. Otherwise:
what is known to be good (the default, the nearest workload's winner), then as `prior` does, every
fifth turn for a neighbour of one of the three best so far. On eight landscapes of an H200 those
turns changed no median; they are for what the surrogate is sure of and wrong about (the slowest
landscape with eight trials under way: 52 in place of over 100 to within 2 % of the best). Where the
times are known beforehand, as by the law for NPUs, there is nothing to be wrong about.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from tunefa.search.sampler import FeasibleSampler, InOrder
from tunefa.search.strategies import prior
from tunefa.search.strategy import SearchProblem

FAIR_TRIALS = prior.FAIR_TRIALS
_POLISH_EVERY = 5
_BEST = 3


class Auto(prior.Prior):
    """Known ones, then as `Prior`, and polish."""

    def opening(self, problem: SearchProblem) -> Iterator[int]:
        """The known ones before the model's favourites."""
        for place in known(self, problem):
            if self.candidates.untried[place]:
                yield place
        yield from super().opening(problem)

    def promising(self, trial: FrozenTrial) -> int:
        """The greatest expected improvement, every few turns among neighbours of the best only."""
        belief = self.belief()
        gain = belief.expected_improvement()
        polishes = (trial.number + 1) % _POLISH_EVERY == 0 and not belief.exact
        if polishes and (beside := self._neighbours()).any():
            gain = np.where(beside, gain, -np.inf)
        return self.best_of(gain)

    def _neighbours(self) -> NDArray[np.bool_]:
        """Of every candidate, whether it is untried and one step from one of the best."""
        found = self.candidates
        right = {place: us for place, us in found.times.items() if us is not None}
        best = sorted(right, key=lambda place: right[place])[:_BEST]
        steps = np.abs(found.places[:, None, :] - found.places[best]).sum(axis=2)
        beside: NDArray[np.bool_] = found.untried & (steps == 1).any(axis=1)
        return beside


def known(of: FeasibleSampler, problem: SearchProblem) -> list[int]:
    """Where the known configs are among the candidates, those that are feasible."""
    places = (of.candidates.find(config) for config in problem.first)
    return list(dict.fromkeys(place for place in places if place is not None))


def sampler(problem: SearchProblem) -> FeasibleSampler:
    """Everything in order where the budget is enough for it, else `Auto`."""
    if len(problem.configs) > (problem.trials or 0):
        return Auto(problem)
    expected = [us if us > 0 else math.inf for us in problem.expected_us]
    order = sorted(range(len(expected)), key=lambda place: expected[place])
    everything = InOrder(problem, order)
    first = known(everything, problem)
    return InOrder(problem, [*first, *order])
