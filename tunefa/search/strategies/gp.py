"""Optuna's Gaussian process."""

from __future__ import annotations

import optuna

from tunefa.search.sampler import FeasibleSampler, Nearest
from tunefa.search.strategy import SearchProblem


def sampler(problem: SearchProblem) -> FeasibleSampler:
    """The GP as Optuna has it, moved to feasible configs."""
    return Nearest(problem, optuna.samplers.GPSampler(seed=problem.seed))
