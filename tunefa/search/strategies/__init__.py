"""The search strategies. A strategy proposes configs and is told their trials; the search loop does
everything else.

A strategy is a module here, found by its file name. Its function `sampler(problem)` returns an
Optuna sampler that chooses among the feasible configs (`tunefa.search.sampler`). An Optuna study
(`tunefa.search.study`) asks the sampler and remembers the trials.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from typing import TYPE_CHECKING, Any

from tunefa.errors import unknown
from tunefa.search.strategy import SearchProblem

if TYPE_CHECKING:  # they bring Optuna
    from tunefa.search.study import Saved, Study


def names() -> list[str]:
    """The names of all strategies: the modules in this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def create(name: str, problem: SearchProblem, saved: Saved | None = None) -> Study:
    """Makes a strategy for one problem; its study is kept in `saved`, or in memory.

    Raises TunefaError for an unknown name, and if the study cannot be written.
    """
    module = _module(name)
    from tunefa.search.study import Study

    return Study(module.sampler(problem), saved, problem.memories)


def fair_trials(name: str) -> float:
    """The number of right trials of a strategy that show how fast a kernel can be.

    It is infinite for a strategy whose first trials may be any configs: its module has no
    `FAIR_TRIALS`. Raises TunefaError for an unknown name.
    """
    return float(getattr(_module(name), "FAIR_TRIALS", math.inf))


def _module(name: str) -> Any:
    if name not in names():
        raise unknown("strategy", name, names())
    return importlib.import_module(f"{__name__}.{name}")
