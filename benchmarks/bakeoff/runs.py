"""Runs a strategy of tunefa on a recorded landscape, one config after the other.

The result is a number of evaluations: each config that is tried for the first time counts as one,
also if it fails. A strategy is told the same times as the recorded search: screenings of one or
five samples. How good a config is, is judged by `Landscape.excess`, which also knows the race.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Protocol

from tunefa.costmodel.estimate import by_model
from tunefa.costmodel.learned import LearnedModel
from tunefa.search import candidates, strategies
from tunefa.search.budget import Budget
from tunefa.search.request import Request
from tunefa.search.strategy import SearchProblem
from tunefa.spec import kernel as kernels
from tunefa.spec.default import Default, first_that_fits
from tunefa.spec.trial import Config, Trial, identity
from tunefa.store import landscape as landscapes
from tunefa.store.landscape import Landscape
from tunefa.store.results import Store

TARGETS = (0.05, 0.02, 0.01)
"""The relative excess times that a config may have over the landscape's best, from far to close."""
LIMIT = 400
"""Evaluations after which a run is given up."""
SLOW = {"gp": 50}
"""Lower limits for slow strategies: Optuna's Gaussian process takes 1 s for the 400th proposal."""

Reached = tuple[int | None, ...]
"""The number of evaluations to reach each target; None if it was not reached."""


class Replayed(Protocol):
    """A recorded space that strategies run on."""

    @property
    def problem(self) -> SearchProblem:
        """The problem that a strategy of tunefa is given."""

    @property
    def excess(self) -> Mapping[tuple[object, ...], float]:
        """The relative excess time of each right config over the best, by identity."""

    def trial(self, config: Config) -> Trial:
        """Returns what was recorded of a config."""


@dataclass(frozen=True)
class Course:
    """A landscape to run on: its first kernel, with the recorded configs that are feasible."""

    landscape: Landscape
    model: LearnedModel | None = None
    """The model learned of other workloads; None for the cost model alone."""

    @property
    def name(self) -> str:
        """The workload, which names a landscape in tables."""
        return str(self.landscape.workload)

    @cached_property
    def problem(self) -> SearchProblem:
        """The problem of a search on the recorded device, with an empty store."""
        made, kernel = self.landscape, kernels.load(self.landscape.kernels[0])
        request = Request(made.workload, made.target, True, (kernel,), Budget(), replay=made)
        case = request.case(kernel)
        held = candidates.feasible_by_kernel(request)[kernel.name]
        known = candidates.known_configs(request, case, Store([]))
        if self.default_config is not None:
            known.append(self.default_config)
        problem = candidates.search_problem(request, case, held, known, None)
        unknown = [None] * len(problem.configs)
        expected = by_model(self.model, case, problem.configs, unknown)
        return replace(problem, expected_us=[each.time_us for each in expected])

    @cached_property
    def excess(self) -> dict[tuple[object, ...], float]:
        """The relative excess time of each right config over the best, by identity."""
        return self.landscape.excess(self.landscape.kernels[0])

    def trial(self, config: Config) -> Trial:
        """Returns the screening of a config."""
        return self.landscape.screened(self.landscape.kernels[0], config)

    @property
    def first_pick(self) -> float:
        """The excess of the config with the least predicted time, before any is compiled."""
        made = self.problem
        favourite = min(zip(made.expected_us, made.configs, strict=True), key=lambda pair: pair[0])
        return self.excess.get(identity(favourite[1]), math.inf)

    @cached_property
    def default_config(self) -> Config | None:
        """The first default of the kernel that is recorded, as a parameter may be younger than the
        landscape; None if there is none."""
        made = self.landscape
        space, env = kernels.load(made.kernels[0]).space, made.workload.env()
        found = first_that_fits(
            space.defaults, space.default_changes, {**env, **made.target.arch.env()},
            lambda config: None if identity(config) in self.excess else "it is not recorded",
        )  # fmt: skip
        return found.config if isinstance(found, Default) else None

    @property
    def default(self) -> float:
        """The excess of `default_config`; infinite without one."""
        return (
            math.inf if self.default_config is None else self.excess[identity(self.default_config)]
        )


def course(path: Path, model: LearnedModel | None = None) -> Course:
    """The course of a landscape's file, with what was learned of other workloads."""
    return Course(_load(path), model)


_load = lru_cache(maxsize=1)(landscapes.load)


class Tally:
    """Counts the evaluations of one run."""

    def __init__(self, course: Replayed, limit: int = LIMIT) -> None:
        self._course, self._limit = course, limit
        self.tried: dict[tuple[object, ...], Trial] = {}
        """The configs that were evaluated, in the sequence of their first evaluations."""
        self._reached: dict[float, int] = {}

    @property
    def evaluations(self) -> int:
        """The number of evaluations so far."""
        return len(self.tried)

    @property
    def reached(self) -> Reached:
        """The evaluations to reach each target, so far."""
        return tuple(self._reached.get(target) for target in TARGETS)

    @property
    def done(self) -> bool:
        """Whether the run can end: it has reached the closest target, or the limit."""
        return TARGETS[-1] in self._reached or self.evaluations >= self._limit

    def evaluate(self, config: Config) -> Trial:
        """Returns the recorded trial of a config, and counts it if it was not tried before."""
        key = identity(config)
        trial = self.tried.setdefault(key, self._course.trial(config))
        excess = self._course.excess.get(key, math.inf)
        for target in TARGETS:
            if excess <= target:
                self._reached.setdefault(target, self.evaluations)
        return trial


def own(course: Replayed, name: str, seed: int, limit: int = LIMIT) -> Reached:
    """Runs one of tunefa's strategies. A slow strategy may have a lower limit."""
    tally = Tally(course, min(limit, SLOW.get(name, limit)))
    run(course, name, seed, tally)
    return tally.reached


def run(course: Replayed, name: str, seed: int, tally: Tally) -> None:
    """Runs one of tunefa's strategies until the tally is done, or nothing is left to try."""
    strategy = strategies.create(name, replace(course.problem, seed=seed))
    while not tally.done:
        config = strategy.ask()
        if config is None:
            return
        strategy.tell(tally.evaluate(config))
