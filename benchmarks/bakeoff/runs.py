"""One run: a strategy of tunefa's on a recorded landscape, one config after the other.

What is counted are evaluations: each config that is tried for the first time is one, whatever
becomes of it. A strategy is told what the recorded search was told, a screening of one or five
samples; how good a config really is, is said by `Landscape.excess`, which knows the race too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

from tunefa.search import candidates, strategies
from tunefa.search.budget import Budget
from tunefa.search.request import Request
from tunefa.search.strategy import SearchProblem, Strategy
from tunefa.spec import kernel as kernels
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Trial, identity
from tunefa.store import landscape as landscapes
from tunefa.store.landscape import Landscape
from tunefa.store.results import Store

TARGETS = (0.05, 0.02, 0.01)
"""How much slower than the landscape's best a config may be, from far to close."""
LIMIT = 400
"""Evaluations after which a run is given up."""
SLOW = {"gp": 50}
"""Limits of strategies that take so long to propose that the runs would not end today: at 400
evaluations Optuna's Gaussian process takes a second for one."""

Reached = tuple[int | None, ...]
"""By target, the evaluation that was the first within it; None if none was."""


@dataclass(frozen=True)
class Course:
    """A landscape to run over: its first kernel, and those of its configs that are feasible."""

    landscape: Landscape

    @property
    def name(self) -> str:
        """The workload, by which tables name a landscape."""
        return str(self.landscape.workload)

    @cached_property
    def problem(self) -> SearchProblem:
        """What a search of the recorded device would tell a strategy; no store has any records."""
        made, kernel = self.landscape, kernels.load(self.landscape.kernels[0])
        held = {identity(trial.config) for trial in made.trials(kernel.name)}
        case = Case(kernel, made.workload, made.target)
        found = case.feasible()
        here = Feasible(tuple(c for c in found.configs if identity(c) in held), found.refused)
        request = Request(made.workload, made.target, True, (kernel,), Budget())
        known = candidates.known_configs(request, case, Store([]))
        return candidates.search_problem(request, case, here, known, None)

    @cached_property
    def excess(self) -> dict[tuple[object, ...], float]:
        """By config that is right, how much slower than the best it is."""
        return self.landscape.excess(self.landscape.kernels[0])

    @property
    def first_pick(self) -> float:
        """The excess of the config that the model likes best before anything is compiled."""
        made = self.problem
        favourite = min(zip(made.expected_us, made.configs, strict=True), key=lambda pair: pair[0])
        return self.excess.get(identity(favourite[1]), math.inf)

    @property
    def default(self) -> float:
        """The excess of the kernel's default."""
        landscape = self.landscape
        kernel, target = kernels.load(landscape.kernels[0]), landscape.target
        config = kernel.default(landscape.workload, target.arch)
        return self.excess.get(identity(config), math.inf)


@lru_cache(maxsize=1)
def course(path: Path) -> Course:
    """The course of a landscape's file."""
    return Course(landscapes.load(path))


class Tally:
    """Counts the evaluations of one run."""

    def __init__(self, course: Course, limit: int = LIMIT) -> None:
        self._course, self._limit = course, limit
        self._tried: set[tuple[object, ...]] = set()
        self._reached: dict[float, int] = {}

    @property
    def evaluations(self) -> int:
        """How many so far."""
        return len(self._tried)

    @property
    def reached(self) -> Reached:
        """The result so far."""
        return tuple(self._reached.get(target) for target in TARGETS)

    @property
    def done(self) -> bool:
        """Whether the run can end: the closest target is reached, or the limit."""
        return TARGETS[-1] in self._reached or self.evaluations >= self._limit

    def evaluate(self, config: Config) -> Trial:
        """What was recorded of a config, counted if it was not tried before."""
        key = identity(config)
        self._tried.add(key)
        excess = self._course.excess.get(key, math.inf)
        for target in TARGETS:
            if excess <= target:
                self._reached.setdefault(target, self.evaluations)
        landscape = self._course.landscape
        return landscape.screened(landscape.kernels[0], config)


def own(course: Course, name: str, seed: int, limit: int = LIMIT) -> Reached:
    """A run of one of tunefa's strategies; a slow one's limit is its own, if that is lower."""
    strategy = strategies.create(name, replace(course.problem, seed=seed))
    tally = Tally(course, min(limit, SLOW.get(name, limit)))
    for config in _asked(strategy, tally):
        strategy.tell(tally.evaluate(config))
    return tally.reached


def _asked(strategy: Strategy, tally: Tally) -> Iterator[Config]:
    while not tally.done:
        config = strategy.ask()
        if config is None:
            return
        yield config
