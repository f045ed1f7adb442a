"""Optuna's sampler by tree-structured Parzen estimators (TPE)."""

from __future__ import annotations

import optuna

from tunefa.search.sampler import FeasibleSampler, Nearest
from tunefa.search.strategy import SearchProblem


def sampler(problem: SearchProblem) -> FeasibleSampler:
    """Returns Optuna's multivariate TPE, each proposal moved to the nearest feasible config."""
    return Nearest(problem, optuna.samplers.TPESampler(seed=problem.seed, multivariate=True))
