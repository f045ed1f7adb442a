"""Every feasible config, in the order of the space's file."""

from __future__ import annotations

from tunefa.strategies import Problem
from tunefa.trial import Config, Trial


class Strategy:
    """Exhaustive search."""

    def __init__(self, problem: Problem) -> None:
        self._left = iter(problem.configs)

    def ask(self) -> Config | None:
        """The next one."""
        return next(self._left, None)

    def tell(self, trial: Trial) -> None:
        """Learns nothing."""
