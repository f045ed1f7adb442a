"""Feasible configs in a random order: the line that a cleverer strategy must beat."""

from __future__ import annotations

import random

from tunefa.strategies import Problem
from tunefa.trial import Config, Trial


class Strategy:
    """Uniform sampling without replacement."""

    def __init__(self, problem: Problem) -> None:
        order = list(problem.configs)
        random.Random(problem.seed).shuffle(order)
        self._left = iter(order)

    def ask(self) -> Config | None:
        """The next one."""
        return next(self._left, None)

    def tell(self, trial: Trial) -> None:
        """Learns nothing."""
