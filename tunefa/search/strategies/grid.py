"""Every feasible config, in the order of the space's file."""

from __future__ import annotations

from tunefa.search.sampler import FeasibleSampler, InOrder
from tunefa.search.strategy import SearchProblem


def sampler(problem: SearchProblem) -> FeasibleSampler:
    """Returns a sampler that proposes every config."""
    return InOrder(problem, range(len(problem.configs)))
