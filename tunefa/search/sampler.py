"""Optuna samplers that propose feasible configs only, each once.

To Optuna a config is the positions of its values in their parameters' lists: its TPE and GP know
what is near what, which they would not of categories. The feasible configs are enumerated, so that
a sampler of ours only has to say which one.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tunefa.search.strategy import SearchProblem
from tunefa.spec.trial import Config, identity

FAILED = "failed"
"""The constraint that a failed trial violates, but for one that only is too large for a memory:
that violates the memory's own, by how much it is too large."""


class Candidates:
    """The feasible configs as positions, and what a study knows of each."""

    def __init__(self, problem: SearchProblem) -> None:
        parameters = problem.parameters
        self.configs = list(problem.configs)
        places = [[p.values.index(config[p.name]) for p in parameters] for config in self.configs]
        self.places: NDArray[np.int64] = np.array(places, int).reshape(-1, len(parameters))
        """(configs, parameters), each in 0 .. values - 1."""
        self.sizes = np.array([len(p.values) for p in parameters])
        self.distributions = {p.name: IntDistribution(0, len(p.values) - 1) for p in parameters}
        self.untried = np.ones(len(self.configs), dtype=bool)
        """Neither told nor under way."""
        self.times: dict[int, float | None] = {}
        """By place in `configs`: us of a trial that was told, None for a failed one."""
        self.excess: dict[int, float] = {}
        """Of those that are too large for a memory, (required - available) / available."""
        self.underway: list[int] = []
        self._by_place = {tuple(place): i for i, place in enumerate(self.places.tolist())}
        self._by_identity = {identity(config): i for i, config in enumerate(self.configs)}
        self._settled = 0

    def find(self, config: Config) -> int | None:
        """Where a config is in `configs`."""
        return self._by_identity.get(identity(config))

    def at(self, params: Mapping[str, Any]) -> int:
        """The place in `configs` of what Optuna calls `params`. Raises KeyError for others."""
        return self._by_place[self._place(params)]

    def params(self, chosen: int) -> dict[str, int]:
        """What Optuna calls a config."""
        return dict(zip(self.distributions, self.places[chosen].tolist(), strict=True))

    def _place(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(params[name] for name in self.distributions)

    def update(self, study: Study) -> None:
        """Takes in what happened since the last time."""
        trials = study.get_trials(deepcopy=False)
        self.underway = []
        for trial in trials[self._settled :]:
            self._take(trial)
        while self._settled < len(trials) and trials[self._settled].state.is_finished():
            self._settled += 1

    def _take(self, trial: FrozenTrial) -> None:
        if trial.params.keys() != self.distributions.keys():
            return  # one that only begins, or was cut off before it had a config
        if trial.state == TrialState.FAIL or self._place(trial.params) not in self._by_place:
            return  # the latter of a study from before a rule changed
        chosen = self.at(trial.params)
        self.untried[chosen] = False
        if trial.state == TrialState.COMPLETE:
            violated = {k: value for k, value in trial.constraints.items() if value > 0}
            self.times[chosen] = None if violated else trial.value
            if violated and FAILED not in violated:
                self.excess[chosen] = max(violated.values())
        else:
            self.underway.append(chosen)


class FeasibleSampler(optuna.samplers.BaseSampler):
    """Chooses among the untried candidates of one problem; each study needs its own."""

    def __init__(self, problem: SearchProblem) -> None:
        self.candidates = Candidates(problem)

    @abc.abstractmethod
    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """The place of an untried candidate; there is one, and the candidates are up to date."""

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters."""
        return dict(self.candidates.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The chosen candidate's positions."""
        self.candidates.update(study)
        return self.candidates.params(self.choose(study, trial))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Optuna asks this only for a parameter that the space does not have."""
        raise ValueError(f"the space has no parameter {param_name!r}")


class InOrder(FeasibleSampler):
    """The candidates in a fixed order."""

    def __init__(self, problem: SearchProblem, order: Sequence[int]) -> None:
        super().__init__(problem)
        self._left = iter(order)

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """The next."""
        return next(place for place in self._left if self.candidates.untried[place])


class Nearest(FeasibleSampler):
    """The untried candidate nearest to what one of Optuna's own samplers proposes.

    Those know no rules and repeat themselves: on a space of 308 configs, covering it took TPE 3,156
    asks. Nearest is by steps along each parameter's list of values.
    """

    def __init__(self, problem: SearchProblem, proposer: optuna.samplers.BaseSampler) -> None:
        super().__init__(problem)
        self._proposer = proposer

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """The nearest; the first of those equally near."""
        space = self._proposer.infer_relative_search_space(study, trial)
        proposed = self._proposer.sample_relative(study, trial, space)
        for name, distribution in self.candidates.distributions.items():
            if name not in proposed and not distribution.single():
                proposed[name] = self._proposer.sample_independent(study, trial, name, distribution)
        place = np.array([proposed.get(name, 0) for name in self.candidates.distributions])
        steps = np.abs(self.candidates.places - place) / np.maximum(1, self.candidates.sizes - 1)
        return int(np.where(self.candidates.untried, steps.sum(axis=1), np.inf).argmin())

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Passes it on."""
        self._proposer.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Passes it on."""
        self._proposer.after_trial(study, trial, state, values)
