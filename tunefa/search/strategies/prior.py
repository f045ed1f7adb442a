"""The analytic model as prior mean of a Gaussian process, over the list of feasible configs.

First the model's favourites, apart from each other; then whatever promises the most improvement.
The model may be wrong about a whole region, and four opinions from four regions show where: with
only one, the median over eight landscapes of an H200 was as good, but on one of them it took
hundreds of trials.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study
from optuna.trial import FrozenTrial

from tunefa.search.sampler import FeasibleSampler
from tunefa.search.strategy import SearchProblem
from tunefa.search.surrogate import Belief, Surrogate

FAIR_TRIALS = 16
"""On eight landscapes the best of them was 6 % from the best of all at most; without a model, as of
`random`, it was up to 118 % (docs/search.md)."""
_FAVOURITES = 4
_FAR = 0.25
"""A config that asks for so much more than a memory has fails as surely as any; with so much to
spare, one works."""
_APART = 3
"""Steps along the parameters' lists from a favourite to all that was tried."""


class Prior(FeasibleSampler):
    """Expected improvement, times the chance that a config works."""

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self._random = np.random.default_rng(problem.seed)
        self._expected_us = np.asarray(problem.expected_us, dtype=float)
        self._exact = problem.exact
        self._room = [max(-1.0, min(1.0, room / _FAR)) for room in problem.room]
        self._opening = self.opening(problem)
        self._surrogate: Surrogate | None = None

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """The opening's next, if there is one; then the most promising."""
        chosen = next(self._opening, None)
        return self.promising(trial) if chosen is None else chosen

    def opening(self, problem: SearchProblem) -> Iterator[int]:
        """What the model likes best, each far from all that was tried; nothing once as many were
        told, as when a search goes on."""
        found = self.candidates
        if len(found.times) >= _FAVOURITES:
            return
        for _ in range(_FAVOURITES):
            tried = found.places[~found.untried]
            steps = np.abs(found.places[:, None, :] - tried).sum(axis=2)
            hopeful = found.untried & (np.asarray(self._room or 1.0) > 0)
            far = np.flatnonzero(hopeful & (steps.min(axis=1, initial=_APART) >= _APART))
            if not len(far):
                return
            yield int(far[self._expected_us[far].argmin()])

    def promising(self, trial: FrozenTrial) -> int:
        """The greatest expected improvement."""
        return self.best_of(self.belief().expected_improvement())

    def belief(self) -> Belief:
        """What is believed of all candidates now."""
        found = self.candidates
        if self._surrogate is None:
            self._surrogate = Surrogate(
                found.places, self._expected_us.tolist(), self._room, self._exact
            )
        done = [place for place, time_us in found.times.items() if time_us is not None]
        times = [time_us for time_us in found.times.values() if time_us is not None]
        return self._surrogate.believe(done, times, self._failed(), found.underway)

    def _failed(self) -> dict[int, float]:
        """How badly each failed: one that is a little too large for a memory says less of others
        than one that is far too large, or that crashed."""
        found = self.candidates
        failed = (place for place, time_us in found.times.items() if time_us is None)
        return {place: min(1.0, found.excess.get(place, _FAR) / _FAR) for place in failed}

    def best_of(self, score: NDArray[np.float64]) -> int:
        """The untried candidate of the highest score; any of those equally high."""
        order = self._random.permutation(np.flatnonzero(self.candidates.untried))
        return int(order[score[order].argmax()])


def sampler(problem: SearchProblem) -> FeasibleSampler:
    """The model, corrected."""
    return Prior(problem)
