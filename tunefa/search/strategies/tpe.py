"""Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

import optuna

from tunefa.search.sampler import FeasibleSampler, Nearest
from tunefa.search.strategy import SearchProblem


def sampler(problem: SearchProblem) -> FeasibleSampler:
    """Multivariate TPE as Optuna has it, moved to feasible configs."""
    return Nearest(problem, optuna.samplers.TPESampler(seed=problem.seed, multivariate=True))
