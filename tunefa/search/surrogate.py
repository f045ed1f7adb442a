"""A surrogate: it predicts the trials of configs that were not tried, from the cost model's
expected times and from the trials so far.

    log time(x) = log expected(x) + a + b log expected(x) + process(x)

The coefficients a and b have Gaussian priors around 0, where the cost model is right, and a
Gaussian process describes its local errors. Whether a config works is another Gaussian process: its
value is 1 for a trial that worked and -1 for one that failed, or between -1 and 0 for one that
failed by little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from tunefa.search.gaussian_process import Array, Places, Process

_POINTS = 128
"""The largest number of trials in a fit: three quarters are the best ones, the rest the latest."""
_OFFSET_SD, _SLOPE_SD = 1.0, 0.3
"""The standard deviations (sd) of the priors of a and b."""
_AMPLITUDE = 0.25
"""The expected amplitude of the cost model's local errors, in log time."""
_NOISE = 0.01
"""The sd of the median of a screening, in log time."""
_CLEAR = 0.7
"""Beyond this difference to the best, in log time, differences count a quarter: it does not matter
how slow the slow configs are."""
_DOUBT = 0.1
"""The sd of whether a config works where its neighbours agree."""


@dataclass(frozen=True)
class Belief:
    """The prediction for every config in focus: mean and sd of its log time, and its probability to
    work."""

    mean: Array
    sd: Array
    works: Array
    best: float
    """The lowest log time so far; infinite before the first."""
    exact: bool = False
    """Whether the log time of every config that works will be exactly its `mean`."""

    def expected_improvement(self) -> Array:
        """The amount by which the log time of each config is expected to be below the best.

        A config that will probably fail has a negative value, so that it comes after all others,
        the most probable to work first. Before the first time, the slowest mean stands for the
        best.
        """
        best = self.best if np.isfinite(self.best) else float(self.mean.max())
        if self.exact:  # a slower config is no improvement
            return np.maximum(best - self.mean, 0.0) * self.works
        z = (best - self.mean) / self.sd
        density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
        gain = self.sd * (z * ndtr(z) + density)
        improvement: Array = np.where(self.works < 0.5, self.works - 1, self.works * gain)
        return improvement


class Surrogate:
    """Learns from the trials of a list of configs."""

    def __init__(
        self,
        places: Places,
        expected_us: Sequence[float],
        works_prior: Sequence[float] = (),
        exact: bool = False,
    ) -> None:
        """Makes a surrogate that knows no trials yet.

        `places` is (configs, parameters), positions in the parameters' lists of values.
        `works_prior` says for each config whether it is expected to work, from 1 for yes to -1 for
        no; empty means 1 for all. `exact` says that each config that works takes exactly as long as
        expected.
        """
        self._exact = exact
        prior = np.log(np.maximum(np.asarray(expected_us, dtype=float), 1e-9))
        finite = prior[np.isfinite(prior)]
        self._prior: Array = np.where(np.isfinite(prior), prior, finite.max(initial=0.0))
        slope = self._prior - self._prior.min(initial=np.inf)
        trend = np.c_[np.full(len(prior), _OFFSET_SD), _SLOPE_SD * slope]
        self._times = Process(places, trend, _AMPLITUDE, _NOISE)
        given = np.asarray(works_prior, dtype=float)
        self._works_prior: Array = given if len(given) else np.ones(len(prior))
        self._working = Process(places, np.zeros((len(prior), 1)), 1.0, _DOUBT)
        self._focus: Places = np.arange(len(prior))

    def focus(self, places: Places) -> None:
        """Lets `believe` predict these configs alone, in this order; at first it predicts all."""
        self._focus = places
        for process in (self._times, self._working):
            process.focus(places)

    def believe(
        self, done: Sequence[int], times_us: Sequence[float], failed: Mapping[int, float],
        in_progress: Sequence[int],
    ) -> Belief:  # fmt: skip
        """Predicts the configs in focus from the trials so far, which are given by their places in
        the list, and may be any.

        `done` worked and took `times_us`. `failed` says how badly each failed, from 0 to 1. Configs
        in progress are taken to have their expected times, without doubt (the "kriging believer" of
        Ginsbourger et al., "Kriging Is Well-Suited to Parallelize Optimization", 2010).
        """
        log = np.log(np.asarray(times_us, dtype=float))
        best = float(log.min(initial=np.inf))
        works = self._works(np.asarray(done, dtype=int), failed)
        prior = self._prior[self._focus]
        if self._exact:
            return Belief(prior, np.zeros(len(prior)), works, best, exact=True)
        kept = _in_fit(log)
        known = np.asarray(done, dtype=int)[kept]
        over = log[kept] - best
        clear = np.where(over > _CLEAR, _CLEAR + (over - _CLEAR) / 4, over) + best
        residual = clear - self._prior[known]
        offset = float(residual.mean()) if len(known) else 0.0
        self._times.fit(known, residual - offset)
        sure = np.asarray(in_progress, dtype=int)
        mean, sd = self._times.posterior(known, residual - offset, sure)
        return Belief(mean + offset + prior, sd, works, best)

    def _works(self, done: Places, failed: Mapping[int, float]) -> Array:
        """The probabilities to work; all 1 while nothing has failed and nothing was expected to."""
        if not failed and self._works_prior.min(initial=1.0) >= 1.0:
            return np.ones(len(self._focus))
        done, which = done[-_POINTS // 2 :], np.array([*failed][-_POINTS // 2 :], dtype=int)
        known = np.r_[done, which]
        seen = np.r_[np.ones(len(done)), [-failed[place] for place in which.tolist()]]
        off = seen - self._works_prior[known]
        self._working.fit(known, off)
        mean, sd = self._working.posterior(known, off, known[:0])
        chance: Array = ndtr((self._works_prior[self._focus] + mean) / sd)
        return chance


def _in_fit(log: Array) -> Places:
    """The places of the trials that a fit uses."""
    if len(log) <= _POINTS:
        return np.arange(len(log))
    best = np.argsort(log, kind="stable")[: 3 * _POINTS // 4]
    latest = np.arange(len(log) - _POINTS // 4, len(log))
    return np.unique(np.r_[best, latest])
