"""A Gaussian process over the feasible configs, with the cost model's times as its prior mean.

The first trials are configs that the cost model expects to be fast and that lie apart from each
other. Then comes the config with the greatest expected improvement. The cost model may be wrong
about a whole region of the space, so the first four trials come from four regions: with only one of
them, the median over eight landscapes of an H200 was as good, but one landscape took hundreds of
trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from optuna.study import Study

from tunefa.search.sampler import FeasibleSampler
from tunefa.search.strategy import SearchProblem
from tunefa.search.surrogate import Belief, Surrogate

FAIR_TRIALS = 16
"""The right trials that show how fast a kernel can be. On eight landscapes the best of the first 16
was at most 6 % slower than the best of all; those of `random`, up to 118 % (docs/search.md)."""
_FIRST_TRIALS = 4
_CLEARLY = 0.25
"""A config surely fails if it exceeds a memory by this part, and surely works if it leaves it
free."""
_APART = 3
"""The least number of steps along the parameters' lists between the first trials."""
_BEST = 3
"""The best trials whose neighbours are looked at."""
FOCUS = 1024
"""The candidates that the surrogate predicts for each trial. They have the greatest expected
improvement of those that it looked at last. With all 93,648 configs of a kernel, an ask took 40 to
125 ms."""
LOOKED_AT = 16384
"""It looks at so many candidates. Half of them are those that the cost model expects to be the
fastest, the others are chosen by chance. Candidates near the best trials come on top: without them
100 trials ended 6 % above the best of a space where each value of a parameter has a factor of 5 %
that the model does not know; with them 4 %, as with all candidates (8 seeds)."""
_NEAR = 2
"""The steps from the best trials to such candidates."""
COMPILING = 4.0
"""A config without a binary must promise so many times as much: on an H200 with 13 cores for
compilers a trial takes 40 ms and a binary 2 to 3 s of one core. The expected improvement for each
second that a trial costs (Snoek et al., "Practical Bayesian Optimization of Machine Learning
Algorithms", 2012, section 3.2)."""
_LEAST_GAIN = 1e-4
"""The expected improvement of the log time for which a candidate without a need of a compiler is
tried, while compilers work for others."""
_MORE, _MOST_MORE = 1.5, 128
"""It looks again when there are so many times as many trials, or so many more."""


class Prior(FeasibleSampler):
    """Proposes by the expected improvement, multiplied by the probability that a config works."""

    def __init__(self, problem: SearchProblem) -> None:
        super().__init__(problem)
        self._random = np.random.default_rng(problem.seed)
        self._expected_us = np.asarray(problem.expected_us, dtype=float)
        self.exact = problem.exact
        self._works_prior = [max(-1.0, min(1.0, free / _CLEARLY)) for free in problem.free_memory]
        self._opening = self.opening(problem)
        self._surrogate: Surrogate | None = None
        self.focus: NDArray[np.int64] = np.zeros(0, int)
        """The places of the candidates that `belief` predicts."""
        self._looks_at = 0.0
        self._near: dict[int, tuple[list[int], NDArray[np.int64]]] = {}
        """By steps: the best trials, and the candidates near them."""

    def choose(self, study: Study, number: int) -> int:
        """Returns the next of the first trials; after them, the most promising config."""
        chosen = next(self._opening, None)
        return self.promising(number) if chosen is None else chosen

    def choose_compiled(self) -> int | None:
        """Returns the untried candidate in focus of the greatest expected improvement that needs no
        compiler; None if all promise too little, or nothing was tried yet."""
        found = self.candidates
        if found.compiled is None or not found.times:
            return None
        gain = self.belief().expected_improvement()
        there = found.untried[self.focus] & found.compiled.are_there(found.places[self.focus])
        gain = np.where(there, gain, 0.0)
        return int(self.focus[gain.argmax()]) if gain.max(initial=0.0) >= _LEAST_GAIN else None

    def opening(self, problem: SearchProblem) -> Iterator[int]:
        """Yields the configs that the cost model expects to be fastest, each far from all that were
        tried. Yields none if the study holds as many trials, as when a search is continued."""
        found = self.candidates
        if len(found.times) >= _FIRST_TRIALS:
            return
        for _ in range(_FIRST_TRIALS):
            steps = found.steps(np.flatnonzero(~found.untried).tolist())
            hopeful = found.untried & (np.asarray(self._works_prior or 1.0) > 0)
            far = np.flatnonzero(hopeful & (steps.min(axis=1, initial=_APART) >= _APART))
            if not len(far):
                return
            yield int(far[self._expected_us[far].argmin()])

    def promising(self, number: int) -> int:
        """Returns the config of the greatest expected improvement, for what its trial costs."""
        return self.best_of(self.worth(self.belief()))

    def worth(self, belief: Belief) -> NDArray[np.float64]:
        """The expected improvement of each candidate in focus, for what its trial costs."""
        gain, compiled = belief.expected_improvement(), self.candidates.compiled
        if compiled is None:
            return gain
        free = compiled.are_there(self.candidates.places[self.focus]) | (gain <= 0.0)
        return np.where(free, gain, gain / COMPILING)

    def hoped_gain(self, best_us: float) -> float:
        """The greatest expected improvement over `best_us`, of the log time."""
        belief = replace(self.belief(), best=math.log(best_us) if best_us > 0 else -math.inf)
        gain = belief.expected_improvement()[self.candidates.untried[self.focus]]
        return max(0.0, float(gain.max(initial=0.0)))

    def belief(self, also: Sequence[int] | NDArray[np.int64] = ()) -> Belief:
        """The surrogate's prediction for the candidates of `focus`, from the trials so far. `also`
        are places of candidates that must be in focus."""
        if self._surrogate is None:
            self._surrogate = Surrogate(
                self.candidates.places, self._expected_us.tolist(), self._works_prior, self.exact
            )
        trials, untried = len(self.candidates.times), self.candidates.untried
        if trials >= self._looks_at or not untried[self.focus].any():
            self._looks_at = max(1.0, min(_MORE * trials, trials + _MOST_MORE))
            self._set_focus(self._surrogate, self._looked_at())
            if len(self.focus) > FOCUS:
                worth = self.worth(self._believe(self._surrogate))
                most = np.argpartition(worth, -FOCUS)[-FOCUS:]
                self._set_focus(self._surrogate, self.focus[most])
        if len(also) and len(missing := np.setdiff1d(also, self.focus)):
            self._set_focus(self._surrogate, np.r_[self.focus, missing])
        return self._believe(self._surrogate)

    def _looked_at(self) -> NDArray[np.int64]:
        """The places of the untried candidates of which the focus is chosen."""
        order = np.argsort(self._expected_us, kind="stable")
        order = order[self.candidates.untried[order]]
        others = self._random.permutation(order[LOOKED_AT // 2 :])
        some = np.r_[order[: LOOKED_AT // 2], others[: LOOKED_AT // 2]]
        return np.union1d(some, self.near_best(_NEAR)) if len(order) > LOOKED_AT else some

    def near_best(self, steps: int) -> NDArray[np.int64]:
        """The places of the untried candidates that are up to so many steps from one of the best
        trials."""
        found = self.candidates
        right = {place: us for place, us in found.times.items() if us is not None}
        best = sorted(right, key=lambda place: right[place])[:_BEST]
        before, near = self._near.get(steps, ([], np.zeros(0, int)))
        if before != best:  # it takes 10 ms for 100,000 candidates
            near = np.flatnonzero((found.steps(best) <= steps).any(axis=1))
            self._near[steps] = best, near
        return near[found.untried[near]]

    def _set_focus(self, surrogate: Surrogate, places: NDArray[np.int64]) -> None:
        self.focus = np.sort(places)
        surrogate.focus(self.focus)

    def _believe(self, surrogate: Surrogate) -> Belief:
        """The surrogate's prediction for the candidates of `focus`."""
        found = self.candidates
        done = [place for place, time_us in found.times.items() if time_us is not None]
        times = [time_us for time_us in found.times.values() if time_us is not None]
        return surrogate.believe(done, times, self._failed(), found.in_progress)

    def _failed(self) -> dict[int, float]:
        """The severity of each failed trial's failure, from 0 to 1, by place.

        A config that is a little too large for a memory says less about others than one that is far
        too large, or that crashed.
        """
        found = self.candidates
        failed = (place for place, time_us in found.times.items() if time_us is None)
        return {place: min(1.0, found.excess.get(place, _CLEARLY) / _CLEARLY) for place in failed}

    def best_of(self, score: NDArray[np.float64]) -> int:
        """Returns the untried candidate in focus of the highest score, a random one of several."""
        untried = np.flatnonzero(self.candidates.untried[self.focus])
        shuffled = self._random.permutation(untried)
        return int(self.focus[shuffled[score[shuffled].argmax()]])


def sampler(problem: SearchProblem) -> FeasibleSampler:
    """Returns the sampler of this strategy."""
    return Prior(problem)
