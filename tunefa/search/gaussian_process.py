"""Gaussian process regression over a list of configs.

A value is a linear trend plus a Gaussian process with the covariance

    amplitude^2 exp(-sum_j w_j |x_j - x'_j|),

where x_j is the position of parameter j's value in its list. Given 30 random trials of good configs
(within 1.8 times the best) of ten workloads on an H200, it predicted the times of the other good
configs to 8.7 % on average; with a Matern kernel of order 3/2 it was 9.2 %, of order 5/2 9.5 %. The
amplitude and the weights w maximise the posterior density under log-normal priors (Rasmussen and
Williams, "Gaussian Processes for Machine Learning", 2006, chapter 5).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

Array = NDArray[np.float64]
Places = NDArray[np.int64]
"""Positions in a list: of configs, or of a parameter's values."""

_WEIGHT, _WEIGHT_SD = 0.3, 1.0
"""The prior of w: a step along a list leaves three quarters of the correlation; and the standard
deviation of its logarithm."""
_AMPLITUDE_SD = 0.5
"""The standard deviation of the logarithm of the amplitude."""
_FEWEST = 4
"""The least number of values that is worth a fit."""
_REFIT = 1.1
"""The factor by which the number of values must grow before the process is fitted again."""


class Process:
    """A Gaussian process over configs; each fit starts from the last one's result."""

    def __init__(self, places: Places, trend: Array, amplitude: float, noise: float) -> None:
        """Makes a process that knows no values yet.

        `places` is (configs, parameters). `trend` is (configs, terms), each term multiplied by the
        standard deviation (sd) of its coefficient. `amplitude` is the expected one, and `noise` the
        sd of a value.
        """
        varies = (places != places[:1]).any(axis=0)
        self._places: Array = places[:, varies].astype(float)
        self._trend, self._noise = trend, noise
        self._start = np.log(np.r_[np.full(varies.sum(), _WEIGHT), amplitude])
        self._spread = np.r_[np.full(varies.sum(), _WEIGHT_SD), _AMPLITUDE_SD]
        self._fitted = self._start
        self._fitted_to = 0
        self._rows: dict[int, Array] = {}
        """By a config: its covariances with all configs, since the last fit."""

    def fit(self, known: Places, values: Array) -> None:
        """Fits weights and amplitude to the `values` of the configs at `known`."""
        if len(known) < max(_FEWEST, _REFIT * self._fitted_to):
            return
        places = self._places[known].T
        steps = np.abs(places[:, :, None] - places[:, None, :])
        fixed = self._trend[known] @ self._trend[known].T + self._noise**2 * np.eye(len(known))

        def loss(logs: Array) -> tuple[float, Array]:
            weights = np.exp(logs[:-1])
            process = np.exp(2 * logs[-1] - np.tensordot(weights, steps, 1))
            inverse = np.linalg.inv(process + fixed)
            solved = inverse @ values
            off = (logs - self._start) / self._spread
            doubled = values @ solved - np.linalg.slogdet(inverse)[1] + off @ off
            pull = (inverse - np.outer(solved, solved)) * process
            slopes = np.r_[-weights * np.einsum("ij,kij->k", pull, steps), 2 * pull.sum()]
            return 0.5 * float(doubled), 0.5 * slopes + off / self._spread

        bounds = np.c_[self._start - 4 * self._spread, self._start + 4 * self._spread]
        found = minimize(
            loss, self._fitted, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 15}
        )
        self._fitted, self._fitted_to = found.x, len(known)
        self._rows.clear()

    def posterior(self, known: Places, values: Array, sure: Places) -> tuple[Array, Array]:
        """Returns the mean and the sd of every config, given the `values` of those at `known`.

        The configs at `sure` count as known too, with their mean as their value.
        """
        seen = np.r_[known, sure]
        across = self._covariances(seen)
        covariance = across[:, seen] + self._noise**2 * np.eye(len(seen))
        root = np.linalg.cholesky(covariance)
        whitened: Array = solve_triangular(root, across, lower=True, check_finite=False)
        n = len(known)
        mean: Array = whitened[:n].T @ np.linalg.solve(root[:n, :n], values)
        variance = np.exp(2 * self._fitted[-1]) + (self._trend**2).sum(axis=1)
        sd: Array = np.sqrt(np.maximum(variance - (whitened**2).sum(axis=0), 1e-8))
        return mean, sd

    def _covariances(self, seen: Places) -> Array:
        """The covariances of these configs with all. Those that an earlier call had are kept: from
        one trial to the next, few are new."""
        asked: list[int] = seen.tolist()
        kept = set(asked)
        self._rows = {place: row for place, row in self._rows.items() if place in kept}
        new = [place for place in dict.fromkeys(asked) if place not in self._rows]
        if new:
            self._rows |= zip(new, self._covariance(np.asarray(new)), strict=True)
        rows = np.array([self._rows[place] for place in asked])
        return rows.reshape(len(asked), len(self._places))

    def _covariance(self, some: Places) -> Array:
        steps = np.zeros((len(some), len(self._places)))
        for place, weight in zip(self._places.T, np.exp(self._fitted[:-1]), strict=True):
            steps += weight * np.abs(place[some, None] - place)
        trend = self._trend[some] @ self._trend.T
        covariance: Array = np.exp(2 * self._fitted[-1] - steps) + trend
        return covariance
