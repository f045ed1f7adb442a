"""Optuna's Gaussian process."""

from __future__ import annotations

import optuna

from tunefa.sampler import FeasibleSampler, Nearest
from tunefa.strategies import Problem


def sampler(problem: Problem) -> FeasibleSampler:
    """The GP as Optuna has it, moved to feasible configs."""
    return Nearest(problem, optuna.samplers.GPSampler(seed=problem.seed))
