"""Strategies propose configs and are told trials; the search loop owns everything else.

A strategy is a module here, found by its file name, with a function `sampler(problem)`: an Optuna
sampler that chooses among the feasible configs (`tunefa.sampler`). An Optuna study (`tunefa.study`)
asks it, and remembers.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tunefa.errors import unknown
from tunefa.space import Parameter
from tunefa.trial import Config, Trial

if TYPE_CHECKING:  # they bring Optuna
    from tunefa.study import Saved


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


def names() -> list[str]:
    """All strategies: the modules in this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def create(name: str, problem: Problem, saved: Saved | None = None) -> Strategy:
    """A strategy for one problem, its study kept in memory if nowhere else.

    Raises TunefaError for an unknown name, and when the study cannot be kept.
    """
    if name not in names():
        raise unknown("strategy", name, names())
    from tunefa.study import Study

    module = importlib.import_module(f"{__name__}.{name}")
    return Study(module.sampler(problem), saved, problem.memories)


def fair_trials(name: str) -> float:
    """Right trials of a strategy that tell how fast a kernel can be.

    Infinite for one that begins anywhere, whose module names no `FAIR_TRIALS`.
    """
    module = importlib.import_module(f"{__name__}.{name}")
    return float(getattr(module, "FAIR_TRIALS", math.inf))


def identity(config: Config) -> tuple[object, ...]:
    """What makes two configs of one space the same: their values, whatever order they are in."""
    return tuple(sorted(config.items()))
