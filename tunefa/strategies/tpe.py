"""Optuna's tree-structured Parzen estimator, projected on the feasible list.

TPE knows no rules and repeats itself: on a space of 308 configs, covering it took 3,156 asks. So
each proposal is moved to the nearest feasible config that was not tried yet, nearest by steps along
each parameter's list of values, and Optuna is told the result under that config's own parameters.

Optuna's samplers ignore failed trials. A failure is told as completed, twice as slow as the slowest
success, and as violating a constraint.
"""

from __future__ import annotations

import numpy as np
import optuna

from tunefa.strategies import Problem, identity
from tunefa.trial import Config, Trial

_STARTUP_TRIALS = 10
_PENALTY = 2.0


class Strategy:
    """Multivariate TPE over the positions of the values in their lists."""

    def __init__(self, problem: Problem) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(
            seed=problem.seed, multivariate=True, n_startup_trials=_STARTUP_TRIALS
        )
        self._study = optuna.create_study(sampler=sampler)
        self._parameters = problem.parameters
        self._configs = list(problem.configs)
        self._places = np.array([self._position(config) for config in self._configs])
        self._index = {identity(config): i for i, config in enumerate(self._configs)}
        self._untried = np.ones(len(self._configs), dtype=bool)
        self._open: dict[int, optuna.Trial] = {}
        self._slowest = 0.0

    def ask(self) -> Config | None:
        """The nearest untried config to what TPE proposes."""
        if not self._untried.any():
            return None
        proposal = self._study.ask()
        place = np.array([self._suggest(proposal, name) for name in self._sizes()])
        steps = np.abs(self._places - place) / np.maximum(1, np.array(self._widths()))
        distance = np.where(self._untried, steps.sum(axis=1), np.inf)
        chosen = int(distance.argmin())
        if distance[chosen] > 0:
            proposal = self._restate(proposal, chosen)
        self._untried[chosen] = False
        self._open[chosen] = proposal
        return self._configs[chosen]

    def tell(self, trial: Trial) -> None:
        """Learns from any trial of the feasible list, proposed here or not."""
        chosen = self._index.get(identity(trial.config))
        if chosen is None:
            return
        self._untried[chosen] = False
        told = self._open.pop(chosen, None) or self._enqueued(chosen)
        time_us = trial.median_us if trial.outcome == "ok" else None
        if time_us is None or not np.isfinite(time_us):
            told.set_constraint("failed", 1.0)
            self._study.tell(told, _PENALTY * (self._slowest or 1e6))
        else:
            told.set_constraint("failed", -1.0)
            self._slowest = max(self._slowest, time_us)
            self._study.tell(told, time_us)

    def _restate(self, proposal: optuna.Trial, chosen: int) -> optuna.Trial:
        """Replaces a proposal by the feasible config that will be tried in its place."""
        self._study.tell(proposal, state=optuna.trial.TrialState.FAIL)
        return self._enqueued(chosen)

    def _enqueued(self, chosen: int) -> optuna.Trial:
        names = [parameter.name for parameter in self._parameters]
        place = (int(step) for step in self._places[chosen])
        self._study.enqueue_trial(dict(zip(names, place, strict=True)))
        trial = self._study.ask()
        for name in self._sizes():
            self._suggest(trial, name)
        return trial

    def _suggest(self, trial: optuna.Trial, name: str) -> int:
        return trial.suggest_int(name, 0, self._sizes()[name] - 1)

    def _sizes(self) -> dict[str, int]:
        return {parameter.name: len(parameter.values) for parameter in self._parameters}

    def _widths(self) -> list[int]:
        return [len(parameter.values) - 1 for parameter in self._parameters]

    def _position(self, config: Config) -> list[int]:
        return [p.values.index(config[p.name]) for p in self._parameters]
