"""Optuna samplers that propose only feasible configs, and each config once.

A study holds the values of each config, which people read in Optuna's dashboard. Optuna's own TPE
(tree-structured Parzen estimator) and GP (Gaussian process) samplers get positions instead: where
each value is in its parameter's list. So they know which values are near each other, as they would
not with categories. The feasible configs are enumerated, and a sampler here says which is next.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages import InMemoryStorage
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tunefa.search.config_table import ConfigTable, Positions, rows
from tunefa.search.strategy import SearchProblem
from tunefa.spec.trial import Config

FAILED = "failed"
"""The name of the constraint that a failed trial violates. A trial that is only too large for a
memory violates that memory's constraint instead, by the excess."""


class Candidates:
    """The feasible configs as positions, and what a study knows about each."""

    def __init__(self, problem: SearchProblem) -> None:
        """Raises ValueError for configs with other parameters than the problem: what is told of
        them would be found nowhere."""
        self._parameters = parameters = problem.parameters
        if len(problem.configs) and problem.configs[0].keys() != {p.name for p in parameters}:
            raise ValueError(f"{problem.configs[0]} has other parameters than the problem")
        self.configs = problem.configs
        self.places: Positions = ConfigTable.of(parameters, problem.configs).positions
        """(configs, parameters), each in 0 .. values - 1."""
        self.sizes = np.array([len(p.values) for p in parameters])
        self.distributions = {p.name: CategoricalDistribution(p.values) for p in parameters}
        self.untried = np.ones(len(self.configs), dtype=bool)
        """Whether each config is neither told nor in progress."""
        self.times: dict[int, float | None] = {}
        """The time of each trial that was told, in us, by place in `configs`; None if it failed."""
        self.excess: dict[int, float] = {}
        """(required - available) / available by place, of configs too large for a memory."""
        self.in_progress: list[int] = []
        self.compiled = problem.compiled
        self._by_place = {row: i for i, row in enumerate(rows(self.places))}
        self._settled = 0

    def find(self, config: Config) -> int | None:
        """The place of a config in `configs`; None if it is not there."""
        try:
            (row,) = rows(ConfigTable.of(self._parameters, [config]).positions)
        except KeyError:  # it lacks a parameter, or has another value
            return None
        return self._by_place.get(row) if len(config) == len(self._parameters) else None

    def params(self, chosen: int) -> dict[str, Any]:
        """The config at a place as Optuna's `params`."""
        return {name: self.configs[chosen][name] for name in self.distributions}

    def positions(self, params: Mapping[str, Any]) -> dict[str, int]:
        """The positions of the values in Optuna's `params`. Raises ValueError for another value."""
        return {name: each.choices.index(params[name]) for name, each in self.distributions.items()}

    def steps(self, some: Sequence[int]) -> NDArray[np.float64]:
        """The steps along the parameters' lists from each config to some: (configs, some)."""
        # Imported late: it takes a quarter of a second, and not every strategy asks for steps.
        from scipy.spatial.distance import cdist

        found: NDArray[np.float64] = cdist(self.places, self.places[some], "cityblock")
        return found

    def update(self, study: Study) -> None:
        """Reads the trials that the study got or finished since the last update."""
        trials = study.get_trials(deepcopy=False)
        self.in_progress = []
        for trial in trials[self._settled :]:
            self._take(trial)
        while self._settled < len(trials) and trials[self._settled].state.is_finished():
            self._settled += 1

    def note_compiled(self, chosen: int) -> None:
        """Notes that there is a binary of a config."""
        if self.compiled is not None:
            self.compiled.add(self.places[chosen])

    def begin(self, chosen: int) -> None:
        """Takes a config to be in progress."""
        self.untried[chosen] = False
        self.in_progress.append(chosen)

    def end(self, chosen: int, time_us: float, constraints: Mapping[str, float]) -> None:
        """Takes in what a study was told of a config, whether or not it was in progress."""
        self.untried[chosen] = False
        if chosen in self.in_progress:
            self.in_progress.remove(chosen)
        violated = {name: value for name, value in constraints.items() if value > 0}
        self.times[chosen] = None if violated else time_us
        if violated and FAILED not in violated:
            self.excess[chosen] = max(violated.values())

    def _take(self, trial: FrozenTrial) -> None:
        if trial.distributions != self.distributions:
            return  # the trial has no config yet, or was ended before it had one
        chosen = self.find(trial.params)
        if trial.state == TrialState.FAIL or chosen is None:
            return  # the second happens in a study from before a rule changed
        if trial.state == TrialState.COMPLETE and trial.value is not None:
            self.end(chosen, trial.value, trial.constraints)
        else:
            self.begin(chosen)


class FeasibleSampler(optuna.samplers.BaseSampler):
    """Chooses among the untried candidates of one problem. Each study needs its own sampler."""

    def __init__(self, problem: SearchProblem) -> None:
        self.candidates = Candidates(problem)
        self.others: list[float | None] = []
        """The times of configs that are none of the candidates, such as a default with a value that
        is not searched; None for those that failed."""

    def is_settled(self) -> bool:
        """Whether trying another config makes no sense now. `candidates` is updated."""
        return False

    def hoped_gain(self, best_us: float) -> float | None:
        """The amount by which the log time of the most promising untried candidate is expected to
        be below the log of `best_us`; None for a sampler without a model."""
        return None

    def choose_compiled(self) -> int | None:
        """Returns the place of an untried candidate that needs no compiler, and may be an
        improvement; None if it knows of none, or is a sampler without a model."""
        return None

    @abc.abstractmethod
    def choose(self, study: Study, number: int) -> int:
        """Returns the place of an untried candidate; there is one, and `candidates` is updated.

        `number` is that of the trial in the study, from 0.
        """

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Returns the values of all parameters."""
        return dict(self.candidates.distributions)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns the chosen candidate's values."""
        self.candidates.update(study)
        return self.candidates.params(self.choose(study, trial.number))

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

    def choose(self, study: Study, number: int) -> int:
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
        sizes = zip(self.candidates.distributions, self.candidates.sizes.tolist(), strict=True)
        self._space = {name: IntDistribution(0, size - 1) for name, size in sizes}
        self._copy = optuna.create_study(storage=InMemoryStorage(), sampler=proposer)
        """The study as `proposer` sees it: positions in place of values."""
        self._copied: set[int] = set()

    def choose(self, study: Study, number: int) -> int:
        """Returns the nearest candidate; the first of several that are equally near."""
        self._copy_finished(study)
        asked = self._copy.ask(dict(self._space))
        self._copy.tell(asked, state=TrialState.FAIL)  # it is the nearest candidate that is tried
        place = np.array([asked.params[name] for name in self._space])
        steps = np.abs(self.candidates.places - place) / np.maximum(1, self.candidates.sizes - 1)
        return int(np.where(self.candidates.untried, steps.sum(axis=1), np.inf).argmin())

    def _copy_finished(self, study: Study) -> None:
        """Copies the trials that have finished since the last call."""
        known = self.candidates.distributions
        finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        for trial in finished:
            if trial.number not in self._copied and trial.distributions == known:
                self._copied.add(trial.number)
                self._copy.add_trial(
                    optuna.trial.create_trial(
                        value=trial.value,
                        params=self.candidates.positions(trial.params),
                        distributions=dict(self._space),
                        constraints=dict(trial.constraints),
                    )
                )
