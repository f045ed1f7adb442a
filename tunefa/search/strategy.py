"""What a strategy is given to search, and what the search loop asks of a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tunefa.spec.space import Parameter
from tunefa.spec.trial import Config, Trial


@dataclass(frozen=True)
class SearchProblem:
    """What there is to search."""

    parameters: tuple[Parameter, ...]
    configs: Sequence[Config]
    """The feasible ones."""
    expected_us: Sequence[float]
    """What the model expects of each of `configs`, before any compiler has seen it."""
    first: Sequence[Config]
    """Worth trying before all others: the default, what neighbours won with."""
    trials: int | None
    """How many trials the budget allows; None when it is counted in seconds."""
    seed: int
    room: Sequence[float] = ()
    """Of each of `configs`, the part of a memory that formulas expect it to leave free, below 0
    where it is too large; empty where no compiler says such things."""
    exact: bool = False
    """Whether `expected_us` is what a trial's time will be, where it is right."""
    memories: tuple[str, ...] = ()
    """Those that a compiler says of how much of them a config asks for too much."""


class Strategy(Protocol):
    """What the search loop asks and tells."""

    def ask(self) -> Config | None:
        """A feasible config that it did not propose before; None if none is left."""

    def tell(self, trial: Trial) -> None:
        """What became of a config. Trials may come back in another order."""
