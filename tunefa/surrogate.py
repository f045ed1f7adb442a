"""What a search believes of configs that it did not try: the analytic model, corrected by trials.

    log time(x) = a + b log expected(x) + residual(x)

with a and b under Gaussian priors (b about 1: the model is right), and the residual a Gaussian
process with covariance amplitude^2 exp(-sum_j w_j |x_j - x'_j|), x_j the position of parameter j's
value in its list. Of 30 random trials of good configs (within 1.8 times the best) of ten workloads
on an H200, it predicted the others to 8.7 % on average, the same with a Matern kernel of order 3/2
to 9.2 % and of 5/2 to 9.5 %, the analytic model alone to 13.5 %. Amplitude and w maximise the
posterior (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, chapter 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import ndtr

Array = NDArray[np.float64]

_POINTS = 128
"""Trials that a fit uses at most: the best three quarters, and the latest."""
_OFFSET_SD, _SLOPE_SD = 1.0, 0.3
_WEIGHT, _WEIGHT_SD = 0.3, 1.0
"""Prior of w: a step along a list leaves three quarters of the correlation; sd of its logarithm."""
_AMPLITUDE, _AMPLITUDE_SD = 0.25, 0.5
"""Prior of the residual's amplitude, in log time; sd of its logarithm."""
_NOISE = 0.01
"""Of one screened median, in log time."""
_CLEAR = 0.7
"""Log times further than this over the best count a quarter: how bad bad ones are, is no matter."""
_FAILURES = 0.2
"""Weight of the belief that a config works, against failures nearby."""


@dataclass(frozen=True)
class Belief:
    """Of every config: log time as mean and sd, and the chance that it runs at all."""

    mean: Array
    sd: Array
    works: Array
    best: float
    """The lowest log time so far."""

    def expected_improvement(self) -> Array:
        """How much lower than the best a config's log time is expected to come out."""
        z = (self.best - self.mean) / self.sd
        density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
        gain: Array = self.works * self.sd * (z * ndtr(z) + density)
        return gain


class Surrogate:
    """Learns from trials of a list of configs; remembers its last fit as the next one's start."""

    def __init__(self, places: NDArray[np.int64], expected_us: Sequence[float]) -> None:
        """`places`: (configs, parameters), positions in the parameters' lists of values."""
        varies = (places != places[:1]).any(axis=0)
        self._places: Array = places[:, varies].astype(float)
        prior = np.log(np.maximum(np.asarray(expected_us, dtype=float), 1e-9))
        worst = prior[np.isfinite(prior)].max(initial=0.0)
        self._prior: Array = np.where(np.isfinite(prior), prior, worst)
        self._start = np.log(np.r_[np.full(varies.sum(), _WEIGHT), _AMPLITUDE])
        self._spread = np.r_[np.full(varies.sum(), _WEIGHT_SD), _AMPLITUDE_SD]
        self._fitted = self._start
        self._fitted_to = 0

    def believe(
        self, done: Sequence[int], times_us: Sequence[float], failed: Sequence[int],
        underway: Sequence[int],
    ) -> Belief:  # fmt: skip
        """What the trials `done`, by place in the list, say of all configs.

        Those under way are believed to come out as expected (the kriging believer: Ginsbourger et
        al., "Kriging Is Well-Suited to Parallelize Optimization", 2010): they leave no doubt.
        """
        log = np.log(np.asarray(times_us, dtype=float))
        best = float(log.min(initial=np.inf))
        kept = _kept(log)
        known = np.asarray(done, dtype=int)[kept]
        over = log[kept] - best
        clear = np.where(over > _CLEAR, _CLEAR + (over - _CLEAR) / 4, over) + best
        residual = clear - self._prior[known]
        offset = float(residual.mean()) if len(known) else 0.0
        if len(known) >= 4 and len(done) >= 1.1 * self._fitted_to:
            self._fit(known, residual - offset)
            self._fitted_to = len(done)
        mean, sd = self._posterior(known, residual - offset, np.asarray(underway, dtype=int))
        works = self._works(np.asarray(done, dtype=int), np.asarray(failed, dtype=int))
        return Belief(mean + offset + self._prior, sd, works, best)

    def _correlation(self, some: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        """(some, others), without the amplitude."""
        steps = np.zeros((len(some), len(others)))
        for place, weight in zip(self._places.T, np.exp(self._fitted[:-1]), strict=True):
            steps += weight * np.abs(place[some, None] - place[others])
        correlation: Array = np.exp(-steps)
        return correlation

    def _trend(self, some: NDArray[np.int64], others: NDArray[np.int64], centre: float) -> Array:
        """Covariance of a + b log expected."""
        left, right = self._prior[some] - centre, self._prior[others] - centre
        trend: Array = _OFFSET_SD**2 + _SLOPE_SD**2 * np.outer(left, right)
        return trend

    def _posterior(
        self, known: NDArray[np.int64], residual: Array, underway: NDArray[np.int64]
    ) -> tuple[Array, Array]:
        """(mean, sd) of every config's residual."""
        everything = np.arange(len(self._places))
        seen = np.r_[known, underway]
        if not len(seen):
            return np.zeros(len(everything)), np.full(len(everything), _AMPLITUDE)
        centre = float(self._prior[known if len(known) else seen].mean())
        variance = np.exp(2 * self._fitted[-1])
        covariance = variance * self._correlation(seen, seen) + self._trend(seen, seen, centre)
        across = variance * self._correlation(seen, everything)
        across += self._trend(seen, everything, centre)
        root = np.linalg.cholesky(covariance + _NOISE**2 * np.eye(len(seen)))
        n = len(known)
        whitened = np.linalg.solve(root, across)
        mean: Array = (whitened[:n].T @ np.linalg.solve(root[:n, :n], residual)).astype(float)
        slope = _SLOPE_SD**2 * (self._prior - centre) ** 2
        left = variance + _OFFSET_SD**2 + slope - (whitened**2).sum(axis=0)
        sd: Array = np.sqrt(np.maximum(left, 1e-8))
        return mean, sd

    def _fit(self, known: NDArray[np.int64], residual: Array) -> None:
        """Weights and amplitude of the greatest posterior density, from the last ones on."""
        places = self._places[known].T
        steps = np.abs(places[:, :, None] - places[:, None, :])
        fixed = self._trend(known, known, float(self._prior[known].mean()))
        fixed += _NOISE**2 * np.eye(len(known))

        def loss(logs: Array) -> tuple[float, Array]:
            weights = np.exp(logs[:-1])
            process = np.exp(2 * logs[-1] - np.tensordot(weights, steps, 1))
            inverse = np.linalg.inv(process + fixed)
            solved = inverse @ residual
            off = (logs - self._start) / self._spread
            value = residual @ solved - np.linalg.slogdet(inverse)[1] + off @ off
            pull = (inverse - np.outer(solved, solved)) * process
            slopes = np.r_[-weights * np.einsum("ij,kij->k", pull, steps), 2 * pull.sum()]
            return 0.5 * float(value), 0.5 * slopes + off / self._spread

        bounds = np.c_[self._start - 4 * self._spread, self._start + 4 * self._spread]
        found = minimize(
            loss, self._fitted, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 15}
        )
        self._fitted = found.x

    def _works(self, done: NDArray[np.int64], failed: NDArray[np.int64]) -> Array:
        """Share of what worked among all that was tried, the nearest counting most."""
        if not len(failed):
            return np.ones(len(self._places))
        everything = np.arange(len(self._places))
        good = _FAILURES + self._correlation(everything, done).sum(axis=1)
        bad = self._correlation(everything, failed).sum(axis=1)
        share: Array = good / (good + bad)
        return share


def _kept(log: Array) -> NDArray[np.int64]:
    """Which trials a fit uses."""
    if len(log) <= _POINTS:
        return np.arange(len(log))
    best = np.argsort(log, kind="stable")[: 3 * _POINTS // 4]
    latest = np.arange(len(log) - _POINTS // 4, len(log))
    return np.unique(np.r_[best, latest])
