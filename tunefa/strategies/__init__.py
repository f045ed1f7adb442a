"""Strategies propose configs and are told trials; the search loop owns everything else.

A strategy is a module here, found by its file name, with a class `Strategy(problem)` that has

* `ask() -> Config | None`: a feasible config that it did not propose before; None if none is left;
* `tell(trial)`: what became of one it proposed. Trials may come back in another order.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tunefa.errors import unknown
from tunefa.space import Parameter
from tunefa.trial import Config, Trial


@dataclass(frozen=True)
class Problem:
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


class Strategy(Protocol):
    """See the module's docstring."""

    def __init__(self, problem: Problem) -> None: ...

    def ask(self) -> Config | None:
        """The next config to try."""

    def tell(self, trial: Trial) -> None:
        """What became of a config."""


def names() -> list[str]:
    """All strategies: the modules in this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def create(name: str, problem: Problem) -> Strategy:
    """A strategy for one problem. Raises TunefaError for an unknown name."""
    if name not in names():
        raise unknown("strategy", name, names())
    module = importlib.import_module(f"{__name__}.{name}")
    strategy: Strategy = module.Strategy(problem)
    return strategy


def identity(config: Config) -> tuple[object, ...]:
    """What makes two configs of one space the same: their values, whatever order they are in."""
    return tuple(sorted(config.items()))
