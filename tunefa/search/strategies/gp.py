"""Optuna's Gaussian process sampler."""

from __future__ import annotations

import optuna

from tunefa.search.sampler import FeasibleSampler, Nearest
from tunefa.search.strategy import SearchProblem


def sampler(problem: SearchProblem) -> FeasibleSampler:
    """Returns Optuna's GP sampler, each proposal moved to the nearest feasible config."""
    return Nearest(problem, optuna.samplers.GPSampler(seed=problem.seed))
