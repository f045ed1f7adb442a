"""tunefa/search/sampler.py: what a study knows of the feasible configs, and who is nearest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from tests.support.sample_problem import PARAMETERS, SMALL, good, problem
from tunefa.search.sampler import FAILED, Candidates, InOrder, Nearest
from tunefa.search.study import Study as OwnStudy
from tunefa.spec.trial import Trial


def candidates() -> Candidates:
    return Candidates(problem())


def trial(
    found: Candidates,
    place: int,
    state: TrialState = TrialState.COMPLETE,
    constraints: Mapping[str, float] = {},
) -> FrozenTrial:
    """A trial of the config at that place in a study, of 5 us if it is complete."""
    made = optuna.trial.create_trial(
        state=state,
        value=5.0 if state == TrialState.COMPLETE else None,
        params=found.params(place),
        distributions=dict(found.distributions),
    )
    for name, value in constraints.items():
        made.set_constraint(name, value)
    return made


def study(*trials: FrozenTrial) -> Study:
    made = optuna.create_study()
    for each in trials:
        made.add_trial(each)
    return made


def test_a_study_has_values_and_their_positions_are_known() -> None:
    found = candidates()
    for place, config in enumerate(SMALL):
        params = found.params(place)
        assert params == config
        positions = {p.name: p.values.index(config[p.name]) for p in PARAMETERS}
        assert found.positions(params) == positions
        assert found.find(params) == found.find(dict(reversed(list(config.items())))) == place
    assert found.find({**SMALL[0], "BLOCK_M": 1}) is None
    with pytest.raises(ValueError, match="not in tuple"):
        found.positions({**found.params(0), "BLOCK_M": 99})
    assert found.distributions["num_stages"] == CategoricalDistribution((1, 2, 3, 4, 5))
    assert found.distributions["ONE"].single()


def test_configs_with_other_parameters_are_refused() -> None:
    fixed = [{**config, "fixed": 1} for config in SMALL]
    with pytest.raises(ValueError, match="'fixed': 1} has other parameters than the problem"):
        Candidates(replace(problem(), configs=fixed))


def test_what_was_tried_is_taken_in_as_it_came_out() -> None:
    found = candidates()
    found.update(
        study(
            trial(found, 0),
            trial(found, 1, constraints={FAILED: 1.0}),
            trial(found, 2, constraints={"ub": 0.5, "l1": 0.25, FAILED: -1.0}),
            trial(found, 3, constraints={"ub": -0.5, FAILED: -1.0}),
            trial(found, 4, TrialState.RUNNING),
            trial(found, 5, TrialState.WAITING),
            trial(found, 6, TrialState.FAIL),
        )
    )
    assert found.times == {0: 5.0, 1: None, 2: None, 3: 5.0}
    assert found.excess == {2: 0.5}, "by how much the fullest memory was too small"
    assert found.in_progress == [4, 5]
    assert np.flatnonzero(~found.untried).tolist() == [0, 1, 2, 3, 4, 5]


def test_what_is_under_way_is_looked_at_again_until_it_is_done() -> None:
    found, made = candidates(), optuna.create_study()
    made.enqueue_trial(found.params(5))
    running = made.ask(dict(found.distributions))
    for _ in range(2):
        found.update(made)
        assert found.in_progress == [5] and found.times == {}
    made.tell(running, 7.0)
    found.update(made)
    assert found.in_progress == [] and found.times == {5: 7.0}


def test_trials_of_another_space_are_passed_over() -> None:
    found = candidates()
    other = optuna.trial.create_trial(
        value=1.0, params={"X": 1}, distributions={"X": IntDistribution(0, 3)}
    )
    refused = {**found.params(0), "BLOCK_M": 256, "BLOCK_N": 256}
    gone = optuna.trial.create_trial(
        value=1.0, params=refused, distributions=dict(found.distributions)
    )
    found.update(study(other, gone))
    assert found.times == {} and found.untried.all()


class Proposes(optuna.samplers.RandomSampler):
    """Proposes one place, or leaves parameters to be asked for one by one."""

    def __init__(self, place: dict[str, int]) -> None:
        super().__init__(seed=0)
        self.place = place

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, Any]:
        sizes = {p.name: len(p.values) - 1 for p in PARAMETERS}
        return {name: IntDistribution(0, sizes[name]) for name in self.place}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return dict(self.place)

    def sample_independent(self, *asked: Any) -> int:
        return 0


def test_the_nearest_untried_one_is_chosen() -> None:
    sampler = Nearest(problem(), Proposes({}))
    found = sampler.candidates
    wanted = found.positions(found.params(7))
    sampler = Nearest(problem(), Proposes(wanted))
    strategy = OwnStudy(sampler, None, ())
    assert strategy.ask() == SMALL[7]
    second = strategy.ask()
    assert second is not None and second != SMALL[7]

    def steps(config: Any) -> float:
        return sum(
            abs(p.values.index(config[p.name]) - wanted[p.name]) / max(1, len(p.values) - 1)
            for p in PARAMETERS
        )

    others = [config for config in SMALL if config != SMALL[7]]
    assert steps(second) == min(map(steps, others))


def test_what_the_proposer_leaves_out_is_asked_for() -> None:
    sampler = Nearest(problem(), Proposes({"BLOCK_M": 0, "BLOCK_N": 0}))
    chosen = OwnStudy(sampler, None, ()).ask()
    assert chosen is not None and (chosen["BLOCK_M"], chosen["num_stages"]) == (16, 1)


def test_an_order_is_kept_but_for_what_was_told() -> None:
    strategy = OwnStudy(InOrder(problem(), [3, 1, 4, 0]), None, ())
    strategy.tell(good(SMALL[1]))
    strategy.tell(Trial(SMALL[4], "crashed", "because"))
    assert [strategy.ask(), strategy.ask()] == [SMALL[3], SMALL[0]]


def test_a_parameter_that_the_space_has_not_is_an_error() -> None:
    sampler = InOrder(problem(), [0])
    with pytest.raises(ValueError, match="no parameter 'colour'"):
        sampler.sample_independent(study(), trial(sampler.candidates, 0), "colour",
                                   IntDistribution(0, 1))  # fmt: skip
