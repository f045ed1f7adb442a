"""Feasible configs in a random order: the line that a cleverer strategy must beat."""

from __future__ import annotations

import numpy as np

from tunefa.search.sampler import FeasibleSampler, InOrder
from tunefa.search.strategy import SearchProblem


def sampler(problem: SearchProblem) -> FeasibleSampler:
    """Uniform sampling without replacement."""
    order = np.random.default_rng(problem.seed).permutation(len(problem.configs))
    return InOrder(problem, order.tolist())
