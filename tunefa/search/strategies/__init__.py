"""Strategies propose configs and are told trials; the search loop owns everything else.

A strategy is a module here, found by its file name, with a function `sampler(problem)`: an Optuna
sampler that chooses among the feasible configs (`tunefa.sampler`). An Optuna study (`tunefa.study`)
asks it, and remembers.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from typing import TYPE_CHECKING

from tunefa.errors import unknown
from tunefa.search.strategy import SearchProblem, Strategy

if TYPE_CHECKING:  # they bring Optuna
    from tunefa.search.study import Saved


def names() -> list[str]:
    """All strategies: the modules in this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def create(name: str, problem: SearchProblem, saved: Saved | None = None) -> Strategy:
    """A strategy for one problem, its study kept in memory if nowhere else.

    Raises TunefaError for an unknown name, and when the study cannot be kept.
    """
    if name not in names():
        raise unknown("strategy", name, names())
    from tunefa.search.study import Study

    module = importlib.import_module(f"{__name__}.{name}")
    return Study(module.sampler(problem), saved, problem.memories)


def fair_trials(name: str) -> float:
    """Right trials of a strategy that tell how fast a kernel can be.

    Infinite for one that begins anywhere, whose module names no `FAIR_TRIALS`.
    """
    module = importlib.import_module(f"{__name__}.{name}")
    return float(getattr(module, "FAIR_TRIALS", math.inf))
