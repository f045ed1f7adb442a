"""Feasible configs in a random order: the baseline for other strategies."""

from __future__ import annotations

import numpy as np

from tunefa.search.sampler import FeasibleSampler, InOrder
from tunefa.search.strategy import SearchProblem


def sampler(problem: SearchProblem) -> FeasibleSampler:
    """Returns a sampler that draws uniformly, without replacement."""
    order = np.random.default_rng(problem.seed).permutation(len(problem.configs))
    return InOrder(problem, order.tolist())
