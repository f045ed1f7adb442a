"""Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

import optuna

from tunefa.sampler import FeasibleSampler, Nearest
from tunefa.strategies import Problem


def sampler(problem: Problem) -> FeasibleSampler:
    """Multivariate TPE as Optuna has it, moved to feasible configs."""
    return Nearest(problem, optuna.samplers.TPESampler(seed=problem.seed, multivariate=True))
