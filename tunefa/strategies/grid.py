"""Every feasible config, in the order of the space's file."""

from __future__ import annotations

from tunefa.sampler import FeasibleSampler, InOrder
from tunefa.strategies import Problem


def sampler(problem: Problem) -> FeasibleSampler:
    """Exhaustive search."""
    return InOrder(problem, range(len(problem.configs)))
