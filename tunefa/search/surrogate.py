"""What a search believes of configs that it did not try: the analytic model, corrected by trials.

    log time(x) = log expected(x) + a + b log expected(x) + process(x)

with a and b under Gaussian priors around 0 (the model is right), and a Gaussian process for where
it is not. Whether a config works at all is another process, through 1 for a trial that did and -1
for one that failed, or less far below 0 for one that only just failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from tunefa.search.gaussian_process import Array, Places, Process

_POINTS = 128
"""Trials that a fit uses at most: the best three quarters, and the latest."""
_OFFSET_SD, _SLOPE_SD = 1.0, 0.3
_AMPLITUDE = 0.25
"""Of what the model does not know, in log time."""
_NOISE = 0.01
"""Of one screened median, in log time."""
_CLEAR = 0.7
"""Log times further than this over the best count a quarter: how bad bad ones are, is no matter."""
_DOUBT = 0.1
"""Sd of whether a config works where its neighbours agree."""


@dataclass(frozen=True)
class Belief:
    """Of every config: log time as mean and sd, and the chance that it works."""

    mean: Array
    sd: Array
    works: Array
    best: float
    """The lowest log time so far; infinite before the first."""
    exact: bool = False
    """Whether every time will come out as `mean`, if the config works."""

    def expected_improvement(self) -> Array:
        """How much lower than the best a config's log time is expected to come out.

        Negative for one that will rather fail: those come after all others, the likeliest to work
        first. Before the first time, how much faster than the slowest it is expected.
        """
        best = self.best if np.isfinite(self.best) else float(self.mean.max())
        if self.exact:  # what is slower is no improvement, however likely it works
            return np.maximum(best - self.mean, 0.0) * self.works
        z = (best - self.mean) / self.sd
        density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
        gain = self.sd * (z * ndtr(z) + density)
        improvement: Array = np.where(self.works < 0.5, self.works - 1, self.works * gain)
        return improvement


class Surrogate:
    """Learns from trials of a list of configs."""

    def __init__(
        self,
        places: Places,
        expected_us: Sequence[float],
        room: Sequence[float] = (),
        exact: bool = False,
    ) -> None:
        """`places`: (configs, parameters), positions in the parameters' lists of values; `room`:
        what is known beforehand of whether each works, 1 for yes, down to -1 for no; `exact`:
        whether each takes as long as expected, if it works."""
        self._exact = exact
        prior = np.log(np.maximum(np.asarray(expected_us, dtype=float), 1e-9))
        finite = prior[np.isfinite(prior)]
        self._prior: Array = np.where(np.isfinite(prior), prior, finite.max(initial=0.0))
        slope = self._prior - self._prior.min(initial=np.inf)
        trend = np.c_[np.full(len(prior), _OFFSET_SD), _SLOPE_SD * slope]
        self._times = Process(places, trend, _AMPLITUDE, _NOISE)
        self._room: Array = np.asarray(room, dtype=float) if len(room) else np.ones(len(prior))
        self._working = Process(places, np.zeros((len(prior), 1)), 1.0, _DOUBT)

    def believe(
        self, done: Sequence[int], times_us: Sequence[float], failed: Mapping[int, float],
        underway: Sequence[int],
    ) -> Belief:  # fmt: skip
        """What the trials `done` and `failed`, by place in the list, say of all configs; how badly
        one failed is a number up to 1.

        Those under way are believed to come out as expected (the kriging believer: Ginsbourger et
        al., "Kriging Is Well-Suited to Parallelize Optimization", 2010): they leave no doubt.
        """
        log = np.log(np.asarray(times_us, dtype=float))
        best = float(log.min(initial=np.inf))
        works = self._works(np.asarray(done, dtype=int), failed)
        if self._exact:
            return Belief(self._prior, np.zeros(len(self._prior)), works, best, exact=True)
        kept = _kept(log)
        known = np.asarray(done, dtype=int)[kept]
        over = log[kept] - best
        clear = np.where(over > _CLEAR, _CLEAR + (over - _CLEAR) / 4, over) + best
        residual = clear - self._prior[known]
        offset = float(residual.mean()) if len(known) else 0.0
        self._times.fit(known, residual - offset)
        sure = np.asarray(underway, dtype=int)
        mean, sd = self._times.posterior(known, residual - offset, sure)
        return Belief(mean + offset + self._prior, sd, works, best)

    def _works(self, done: Places, failed: Mapping[int, float]) -> Array:
        """Chances; all 1 while nothing has failed, and nothing was known to."""
        if not failed and self._room.min(initial=1.0) >= 1.0:
            return np.ones(len(self._prior))
        done, which = done[-_POINTS // 2 :], np.array([*failed][-_POINTS // 2 :], dtype=int)
        known = np.r_[done, which]
        seen = np.r_[np.ones(len(done)), [-failed[place] for place in which.tolist()]]
        off = seen - self._room[known]
        self._working.fit(known, off)
        mean, sd = self._working.posterior(known, off, known[:0])
        chance: Array = ndtr((self._room + mean) / sd)
        return chance


def _kept(log: Array) -> Places:
    """Which trials a fit uses."""
    if len(log) <= _POINTS:
        return np.arange(len(log))
    best = np.argsort(log, kind="stable")[: 3 * _POINTS // 4]
    latest = np.arange(len(log) - _POINTS // 4, len(log))
    return np.unique(np.r_[best, latest])
