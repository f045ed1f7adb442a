"""The contract of every strategy, over all that `strategies.names()` finds; and what some add."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.sample_problem import (
    BEST,
    FEASIBLE,
    PARAMETERS,
    SMALL,
    asked,
    good,
    landscape_us,
    problem,
    proposals,
)
from tunefa.errors import TunefaError
from tunefa.search import strategies
from tunefa.spec.trial import OUTCOMES, Config, Trial, identity


def covers(proposed: Iterable[Config], configs: Sequence[Config]) -> bool:
    """Whether every config was proposed, none twice and no other."""
    return sorted(map(repr, proposed)) == sorted(map(repr, configs))


def randomness() -> tuple[Any, Any]:
    """The states of the process's generators of random numbers."""
    return random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]


every = pytest.mark.parametrize("name", strategies.names())


def test_there_are_strategies_and_unknown_ones_are_suggested() -> None:
    assert {"auto", "grid", "random", "tpe"} <= set(strategies.names())
    with pytest.raises(TunefaError, match="unknown strategy 'grit': did you mean grid"):
        strategies.create("grit", problem())


@every
@pytest.mark.parametrize("trials", [None, 1, 10, 10**6])
def test_it_proposes_every_feasible_config_once(name: str, trials: int | None) -> None:
    """The configs come as they are, and the randomness of the process is left alone."""
    random.seed(5)
    np.random.seed(5)
    before = [dict(config) for config in SMALL], *randomness()
    strategy = strategies.create(name, problem(trials=trials))
    proposed = asked(strategy)
    assert covers(proposed, SMALL)
    assert [strategy.ask() for _ in range(3)] == [None] * 3
    assert all(list(config) == [p.name for p in PARAMETERS] for config in proposed)
    assert before == (SMALL, *randomness())


@every
@pytest.mark.parametrize("configs", [[], FEASIBLE[:1], FEASIBLE[:2]])
def test_few_configs(name: str, configs: list[Config]) -> None:
    assert covers(asked(strategies.create(name, problem(configs))), configs)


@every
def test_it_does_not_repeat_itself_while_nothing_comes_back(name: str) -> None:
    assert covers(asked(strategies.create(name, problem()), lambda config: None), SMALL)


@every
@pytest.mark.parametrize("outcome", [each for each in OUTCOMES if each != "ok"])
def test_it_goes_on_when_everything_fails(name: str, outcome: Any) -> None:
    proposed = asked(strategies.create(name, problem()), lambda c: Trial(c, outcome, "no"))
    assert covers(proposed, SMALL)


@every
@pytest.mark.parametrize("time_us", [None, math.inf, 0.0, 1e-300, 1e300])
def test_it_goes_on_with_odd_times(name: str, time_us: float | None) -> None:
    proposed = asked(
        strategies.create(name, problem()), lambda c: Trial(c, "ok", "", None, time_us)
    )
    assert covers(proposed, SMALL)


@every
def test_good_and_failed_trials_come_mixed(name: str) -> None:
    def judge(config: Config) -> Trial:
        failed = Trial(config, "crashed", "the compiler died")
        return failed if config["num_stages"] == 3 else good(config)

    assert covers(asked(strategies.create(name, problem()), judge), SMALL)


@every
@pytest.mark.parametrize("width", [2, 7])
def test_trials_come_back_in_another_order(name: str, width: int) -> None:
    strategy = strategies.create(name, problem())
    chance, underway, proposed = random.Random(1), list[Config](), list[Config]()
    while True:
        while len(underway) < width and (config := strategy.ask()) is not None:
            underway.append(config)
            proposed.append(config)
        if not underway:
            break
        strategy.tell(good(underway.pop(chance.randrange(len(underway)))))
    assert covers(proposed, SMALL)


@every
def test_trials_it_did_not_propose_or_was_told_before(name: str) -> None:
    strategy = strategies.create(name, problem())
    strategy.tell(good(SMALL[5]))
    strategy.tell(Trial(SMALL[6], "wrong", "error 1"))
    outside = next(config for config in FEASIBLE if config not in SMALL)
    strategy.tell(good(outside))
    first = strategy.ask()
    assert first is not None
    for trial in (good(first), replace(good(first), samples_us=(1.0,)), Trial(first, "wrong")):
        strategy.tell(trial)
    rest = asked(strategy)
    assert first not in rest and outside not in rest
    known = [SMALL[5], SMALL[6]]
    left = [c for c in SMALL if c != first]
    # It may skip what it was told of before it asked, and nothing else.
    assert covers([c for c in rest if c not in known], [c for c in left if c not in known])
    assert len(rest) == len({repr(c) for c in rest})


@every
def test_the_same_seed_proposes_the_same(name: str) -> None:
    first, second = (asked(strategies.create(name, problem(seed=3))) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("name", ["random", "tpe"])
def test_another_seed_proposes_another_order(name: str) -> None:
    first, second = (asked(strategies.create(name, problem(seed=seed))) for seed in (3, 4))
    assert first != second


def test_two_configs_are_the_same_by_their_values() -> None:
    assert identity(SMALL[0]) == identity(dict(SMALL[0])) != identity(SMALL[1])


def trials_until_best(name: str, seed: int) -> int:
    strategy = strategies.create(name, problem(FEASIBLE, seed=seed))
    for count in itertools.count(1):
        config = strategy.ask()
        assert config is not None
        if config == BEST:
            return count
        strategy.tell(good(config))
    raise AssertionError


def test_who_finds_a_planted_optimum_sooner() -> None:
    medians = {
        name: statistics.median(trials_until_best(name, seed) for seed in range(8))
        for name in ("random", "tpe", "prior", "auto")
    }
    assert medians["tpe"] < medians["random"] / 4  # 33 of 776 configs against 386
    assert medians["prior"] < medians["random"] / 4
    assert medians["auto"] < medians["tpe"]


@pytest.mark.parametrize("name", ["tpe", "prior", "auto"])
def test_it_keeps_away_from_what_fails(name: str) -> None:
    """A fifth of the space fails: fewer of its proposals do, and it comes near the best."""

    def fails(config: Config) -> bool:
        return bool(config["BLOCK_M"] <= 32 and config["COPIES"] == "tma")

    def judge(config: Config) -> Trial:
        return Trial(config, "timeout", "60 s") if fails(config) else good(config)

    failing = sum(map(fails, FEASIBLE)) / len(FEASIBLE)
    assert failing > 0.2
    for seed in range(3):
        proposed = proposals(name, 60, judge, seed=seed)
        assert sum(map(fails, proposed[20:])) / 40 < failing / 2
        assert min(map(landscape_us, proposed)) < 1.25 * landscape_us(BEST)
