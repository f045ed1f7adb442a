"""The strategies that correct the analytic model: `prior`, and `auto` which adds to it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.support.sample_problem import (
    BEST,
    FEASIBLE,
    SMALL,
    good,
    landscape_us,
    problem,
    proposals,
)
from tunefa.search import strategies
from tunefa.search.strategies import prior
from tunefa.search.study import Study
from tunefa.spec.trial import Config, Trial


@pytest.mark.parametrize("name", ["prior", "auto"])
def test_a_wrong_model_is_unlearned(name: str) -> None:
    """Trials win over the analytic model where it has the order upside down."""
    upside_down = problem(FEASIBLE)
    inverse = [1e4 / expected for expected in upside_down.expected_us]
    strategy = strategies.create(name, replace(upside_down, expected_us=inverse))
    proposed = []
    for _ in range(60):
        config = strategy.ask()
        assert config is not None
        proposed.append(landscape_us(config))
        strategy.tell(good(config))
    assert min(proposed[:4]) > 1.5 * landscape_us(BEST)
    assert min(proposed) < 1.15 * landscape_us(BEST)


def test_a_search_that_goes_on_has_no_opening() -> None:
    """The distances between all candidates and thousands of trials would take gigabytes."""
    asked = problem(FEASIBLE)
    for told, opens in ((3, True), (4, False)):
        sampler = prior.Prior(asked)
        strategy = Study(sampler)
        for config in FEASIBLE[:told]:
            strategy.tell(good(config))
        assert bool(list(sampler.opening(asked))) == opens


@pytest.mark.parametrize("name", ["prior", "auto"])
def test_proposals_under_way_are_spread(name: str) -> None:
    """Asked for a batch, it does not put all on neighbours of one another."""
    strategy = strategies.create(name, problem(FEASIBLE))
    for known in FEASIBLE[::60]:
        strategy.tell(good(known))
    batch = [config for _ in range(12) if (config := strategy.ask()) is not None]
    assert len({(c["BLOCK_M"], c["BLOCK_N"], c["num_stages"]) for c in batch}) >= 6


@pytest.mark.parametrize("name", ["prior", "auto"])
def test_batches_find_a_planted_optimum_nearly_as_soon(name: str) -> None:
    strategy = strategies.create(name, problem(FEASIBLE))
    underway, chance = list[Config](), random.Random(2)
    count = 0
    while True:
        count += 1
        while len(underway) < 8 and (config := strategy.ask()) is not None:
            underway.append(config)
        config = underway.pop(chance.randrange(len(underway)))
        if config == BEST:
            break
        strategy.tell(good(config))
    assert count < 60  # of 776


@pytest.mark.parametrize("name", ["prior", "auto"])
def test_it_leaves_a_region_whose_favourites_fail(name: str) -> None:
    """The model likes most what never works: the failures near it say so."""
    judge = lambda c: Trial(c, "crashed") if c["BLOCK_M"] >= 128 else good(c)  # noqa: E731
    proposed = proposals(name, 40, judge)
    assert sum(c["BLOCK_M"] >= 128 for c in proposed[20:]) <= 5


@pytest.mark.parametrize("name", ["prior", "auto"])
def test_a_few_candidates_in_focus_find_a_planted_optimum_nearly_as_soon(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prior, "FOCUS", 24)
    monkeypatch.setattr(prior, "LOOKED_AT", 96)
    assert proposals(name, 60, good).index(BEST) < 60  # of 776


def test_the_focus_has_the_greatest_expected_improvement(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = problem(FEASIBLE)
    sampler = prior.Prior(asked)
    strategy = Study(sampler)
    for config in FEASIBLE[::60]:
        strategy.tell(good(config))
    monkeypatch.setattr(prior, "FOCUS", len(FEASIBLE))
    gain = sampler.belief().expected_improvement()
    order = np.argsort(-gain)
    monkeypatch.setattr(prior, "FOCUS", 24)
    again = prior.Prior(asked)
    strategy = Study(again)
    for config in FEASIBLE[::60]:
        strategy.tell(good(config))
    again.belief()
    assert set(again.focus) == set(sampler.focus[order[:24]])
    assert set(again.near_best(1)) - set(again.focus)
    again.belief(again.near_best(1))
    assert set(again.near_best(1)) <= set(again.focus)


def test_half_of_what_it_looks_at_are_the_models_favourites(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prior, "LOOKED_AT", 16)
    asked = problem(FEASIBLE)
    for seed in range(3):
        sampler = prior.Prior(replace(asked, seed=seed))
        sampler.belief()
        assert len(sampler.focus) == 16
        assert set(np.argsort(asked.expected_us)[:8]) <= set(sampler.focus)


def test_the_focus_is_chosen_again_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are proposed in the end, and what is looked at is the model's favourites, those near the
    best, and others by chance."""
    for name, count in (("FOCUS", 4), ("LOOKED_AT", 8)):
        monkeypatch.setattr(prior, name, count)
    sampler = prior.Prior(problem(SMALL))
    strategy = Study(sampler)
    proposed = list[Config]()
    while (config := strategy.ask()) is not None:
        proposed.append(config)
        strategy.tell(good(config))
    assert sorted(map(repr, proposed)) == sorted(map(repr, SMALL))
