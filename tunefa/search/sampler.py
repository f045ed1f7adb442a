"""Optuna samplers that propose only feasible configs, and each config once.

For Optuna, a config is a list of positions: where each value is in its parameter's list. So its TPE
(tree-structured Parzen estimator) and GP (Gaussian process) samplers know which values are near
each other, as they would not with categories. The feasible configs are enumerated, and a sampler
here says which of them is next.
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
"""The name of the constraint that a failed trial violates. A trial that is only too large for a
memory violates that memory's constraint instead, by the excess."""


class Candidates:
    """The feasible configs as positions, and what a study knows about each."""

    def __init__(self, problem: SearchProblem) -> None:
        parameters = problem.parameters
        self.configs = list(problem.configs)
        places = [[p.values.index(config[p.name]) for p in parameters] for config in self.configs]
        self.places: NDArray[np.int64] = np.array(places, int).reshape(-1, len(parameters))
        """(configs, parameters), each in 0 .. values - 1."""
        self.sizes = np.array([len(p.values) for p in parameters])
        self.distributions = {p.name: IntDistribution(0, len(p.values) - 1) for p in parameters}
        self.untried = np.ones(len(self.configs), dtype=bool)
        """Whether each config is neither told nor in progress."""
        self.times: dict[int, float | None] = {}
        """The time of each trial that was told, in us, by place in `configs`; None if it failed."""
        self.excess: dict[int, float] = {}
        """(required - available) / available by place, of configs too large for a memory."""
        self.in_progress: list[int] = []
        self._by_place = {tuple(place): i for i, place in enumerate(self.places.tolist())}
        self._by_identity = {identity(config): i for i, config in enumerate(self.configs)}
        self._settled = 0

    def find(self, config: Config) -> int | None:
        """The place of a config in `configs`; None if it is not there."""
        return self._by_identity.get(identity(config))

    def at(self, params: Mapping[str, Any]) -> int:
        """The place in `configs` of Optuna's `params`. Raises KeyError if no config has them."""
        return self._by_place[self._place(params)]

    def params(self, chosen: int) -> dict[str, int]:
        """The config at a place as Optuna's `params`: its positions by parameter."""
        return dict(zip(self.distributions, self.places[chosen].tolist(), strict=True))

    def _place(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(params[name] for name in self.distributions)

    def update(self, study: Study) -> None:
        """Reads the trials that the study got or finished since the last update."""
        trials = study.get_trials(deepcopy=False)
        self.in_progress = []
        for trial in trials[self._settled :]:
            self._take(trial)
        while self._settled < len(trials) and trials[self._settled].state.is_finished():
            self._settled += 1

    def _take(self, trial: FrozenTrial) -> None:
        if trial.params.keys() != self.distributions.keys():
            return  # the trial has no config yet, or was ended before it had one
        if trial.state == TrialState.FAIL or self._place(trial.params) not in self._by_place:
            return  # the second happens in a study from before a rule changed
        chosen = self.at(trial.params)
        self.untried[chosen] = False
        if trial.state == TrialState.COMPLETE:
            violated = {k: value for k, value in trial.constraints.items() if value > 0}
            self.times[chosen] = None if violated else trial.value
            if violated and FAILED not in violated:
                self.excess[chosen] = max(violated.values())
        else:
            self.in_progress.append(chosen)


class FeasibleSampler(optuna.samplers.BaseSampler):
    """Chooses among the untried candidates of one problem. Each study needs its own sampler."""

    def __init__(self, problem: SearchProblem) -> None:
        self.candidates = Candidates(problem)

    @abc.abstractmethod
    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """Returns the place of an untried candidate; there is one, and `candidates` is updated."""

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Returns the positions of all parameters."""
        return dict(self.candidates.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns the chosen candidate's positions."""
        self.candidates.update(study)
        return self.candidates.params(self.choose(study, trial))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Raises ValueError, as Optuna calls this only for parameters that the space lacks."""
        raise ValueError(f"the space has no parameter {param_name!r}")


class InOrder(FeasibleSampler):
    """Proposes the candidates in a fixed order."""

    def __init__(self, problem: SearchProblem, order: Sequence[int]) -> None:
        super().__init__(problem)
        self._left = iter(order)

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """Returns the next untried candidate."""
        return next(place for place in self._left if self.candidates.untried[place])


class Nearest(FeasibleSampler):
    """Proposes the untried candidate that is nearest to the proposal of one of Optuna's own
    samplers.

    These know no rules and repeat themselves: TPE took 3,156 proposals to cover a space of 308
    configs. The distance is the sum of the steps along each parameter's list of values.
    """

    def __init__(self, problem: SearchProblem, proposer: optuna.samplers.BaseSampler) -> None:
        super().__init__(problem)
        self._proposer = proposer

    def choose(self, study: Study, trial: FrozenTrial) -> int:
        """Returns the nearest candidate; the first of several that are equally near."""
        space = self._proposer.infer_relative_search_space(study, trial)
        proposed = self._proposer.sample_relative(study, trial, space)
        for name, distribution in self.candidates.distributions.items():
            if name not in proposed and not distribution.single():
                proposed[name] = self._proposer.sample_independent(study, trial, name, distribution)
        place = np.array([proposed.get(name, 0) for name in self.candidates.distributions])
        steps = np.abs(self.candidates.places - place) / np.maximum(1, self.candidates.sizes - 1)
        return int(np.where(self.candidates.untried, steps.sum(axis=1), np.inf).argmin())

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Passes the call on to Optuna's sampler."""
        self._proposer.before_trial(study, trial)

    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Passes the call on to Optuna's sampler."""
        self._proposer.after_trial(study, trial, state, values)
