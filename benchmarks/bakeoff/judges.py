"""Runs strategies of kernel_tuner 1.5 on the same landscapes.

Its search space holds just the feasible configs, and its options are the defaults. A runner answers
from the landscape instead of its simulation mode, so that a run ends when it is good enough.
Configs that it asks for again come from its cache and are not counted. A failed config gets the
time that its Bayesian optimisation uses for failures: the error that version 1.5.0 passes on
instead overflows its Gaussian process.

Source: Willemsen et al., "Bayesian Optimization for auto-tuning GPU kernels", PMBS 2021; van
Werkhoven, "Kernel Tuner: A search-optimizing GPU code auto-tuner", FGCS 90 (2019).
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import numpy as np
from kernel_tuner import util
from kernel_tuner.interface import Options
from kernel_tuner.runners.runner import Runner
from kernel_tuner.searchspace import Searchspace
from scipy.stats.qmc import LatinHypercube

from benchmarks.bakeoff.runs import LIMIT, Course, Reached, Replayed, Tally

NAMES = ("bayes_opt", "genetic_algorithm", "diff_evo", "random_sample")
_FAILED = 1e20
_SAMPLERS = (
    "scipy.stats.qmc.LatinHypercube",
    "kernel_tuner.strategies.bayes_opt.LatinHypercube",
)
"""Names of the sampler of Latin hypercubes, whose generator kernel_tuner does not seed."""


class Replay(Runner):  # type: ignore[misc]  # kernel_tuner has no types
    """A runner that answers from a landscape."""

    def __init__(self, tally: Tally, names: list[str], limit: int = LIMIT) -> None:
        super().__init__()
        self._tally, self._names, self._limit = tally, names, limit
        self.dev = Options(max_threads=10**9)

    def get_device_info(self) -> Any:
        """Returns no limits: all configs are feasible."""
        return self.dev

    def get_environment(self, tuning_options: Any) -> dict[str, Any]:
        """Returns nothing."""
        return {}

    def run(self, parameter_space: Iterable[Any], tuning_options: Any) -> list[Any]:
        """Returns one result per config; None for configs after the end of the run."""
        return [self._result(values, tuning_options.budget) for values in parameter_space]

    def _result(self, values: Any, budget: Any) -> dict[str, Any] | None:
        if self._tally.done:
            budget.add_evaluations(self._limit)  # it asks its budget whether to go on
            return None
        config, before = dict(zip(self._names, values, strict=True)), self._tally.evaluations
        trial = self._tally.evaluate(config)
        budget.add_evaluations(self._tally.evaluations - before)
        time_us = trial.median_us if trial.outcome == "ok" else None
        return {**config, "time": time_us or _FAILED}


def run(course: Course, name: str, seed: int) -> Reached:
    """Runs one of kernel_tuner's strategies, by the name of its module."""
    tally = Tally(course)
    replay(course, name, seed, tally)
    return tally.reached


def replay(course: Replayed, name: str, seed: int, tally: Tally, limit: int = LIMIT) -> None:
    """Runs one of kernel_tuner's strategies until the tally is done, or `limit` evaluations."""
    configs = course.problem.configs
    values: dict[str, list[Any]] = {
        parameter: sorted({config[parameter] for config in configs}) for parameter in configs[0]
    }
    cache = {str(place): dict(config) for place, config in enumerate(configs)}
    # Each run has its own space, as a space remembers which neighbours were drawn.
    space = Searchspace(None, None, None, from_cache={"tune_params": values, "cache": cache})
    limit = min(limit, len(configs))
    options = Options(
        strategy_options=Options(max_fevals=limit),
        max_fevals=limit,
        tune_params=values,
        objective=["time"],
        objective_higher_is_better=[False],
        budget=util.TuningBudget(None, limit),
        verbose=False,
    )
    strategy = import_module(f"kernel_tuner.strategies.{name}")
    with warnings.catch_warnings(), _seeded(seed):
        warnings.simplefilter("ignore")
        strategy.tune(space, Replay(tally, list(values), limit), options)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    random.seed(seed)
    np.random.seed(seed)
    with contextlib.ExitStack() as stack:
        for name in _SAMPLERS:
            stack.enter_context(mock.patch(name, partial(LatinHypercube, rng=seed)))
        yield
