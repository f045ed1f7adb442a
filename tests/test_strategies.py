"""What every strategy must do, over all that `strategies.names()` finds; and what TPE adds."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tunefa import strategies
from tunefa.errors import TunefaError
from tunefa.space import Parameter
from tunefa.strategies import Problem, Strategy, identity
from tunefa.trial import OUTCOMES, Config, Trial

PARAMETERS = (
    Parameter("BLOCK_M", (16, 32, 64, 128, 256), ""),
    Parameter("BLOCK_N", (16, 32, 64, 128, 256), ""),
    Parameter("num_stages", (1, 2, 3, 4, 5), ""),
    Parameter("LOADS", ("pointer", "tma"), ""),
    Parameter("ORDER", (0, 1, 2, 3), ""),
    Parameter("ONE", (7,), ""),
)
BEST = {"BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 3, "LOADS": "tma", "ORDER": 3, "ONE": 7}


def feasible() -> list[Config]:
    names = [parameter.name for parameter in PARAMETERS]
    everything = itertools.product(*(parameter.values for parameter in PARAMETERS))
    configs = [dict(zip(names, values, strict=True)) for values in everything]
    return [c for c in configs if c["BLOCK_M"] * c["BLOCK_N"] <= 2**14
            and c["BLOCK_M"] * c["num_stages"] <= 512]  # fmt: skip


def landscape_us(config: Config) -> float:
    """Smooth, with an interaction of two parameters and its minimum at BEST."""
    place = {p.name: p.values.index(config[p.name]) for p in PARAMETERS}
    off = {p.name: abs(place[p.name] - p.values.index(BEST[p.name])) for p in PARAMETERS}
    slower = 0.15 * off["BLOCK_M"] ** 2 + 0.1 * off["BLOCK_N"] ** 2 + 0.05 * off["num_stages"]
    slower += 0.2 * off["LOADS"] + 0.07 * off["ORDER"]
    return 100 * (1 + slower + 0.05 * abs(place["BLOCK_M"] - place["BLOCK_N"] - 1))


FEASIBLE = feasible()
SMALL = FEASIBLE[::25]


def problem(
    configs: Sequence[Config] = SMALL,
    first: Sequence[Config] = (),
    trials: int | None = None,
    seed: int = 0,
) -> Problem:
    expected = [landscape_us(config) * (1 + 0.3 * math.sin(i)) for i, config in enumerate(configs)]
    return Problem(PARAMETERS, list(configs), expected, list(first), trials, seed)


def good(config: Config) -> Trial:
    return Trial(config, "ok", predicted_us=landscape_us(config))


def asked(strategy: Strategy, judge: Callable[[Config], Trial | None] = good) -> list[Config]:
    """Everything it proposes until it has nothing left, each told at once."""
    proposed: list[Config] = []
    while (config := strategy.ask()) is not None:
        proposed.append(dict(config))
        assert len(proposed) <= len(FEASIBLE), "it does not come to an end"
        if (trial := judge(config)) is not None:
            strategy.tell(trial)
    return proposed


def covers(proposed: Iterable[Config], configs: Sequence[Config]) -> bool:
    """Whether every config was proposed, none twice and no other."""
    return sorted(map(repr, proposed)) == sorted(map(repr, configs))


every = pytest.mark.parametrize("name", strategies.names())


def test_there_are_strategies_and_unknown_ones_are_suggested() -> None:
    assert {"auto", "grid", "random", "tpe"} <= set(strategies.names())
    with pytest.raises(TunefaError, match="unknown strategy 'grit': did you mean grid"):
        strategies.create("grit", problem())


@every
@pytest.mark.parametrize("trials", [None, 1, 10, 10**6])
def test_it_proposes_every_feasible_config_once(name: str, trials: int | None) -> None:
    strategy = strategies.create(name, problem(trials=trials))
    assert covers(asked(strategy), SMALL)
    assert [strategy.ask() for _ in range(3)] == [None] * 3


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


@every
def test_randomness_of_the_process_is_left_alone(name: str) -> None:
    random.seed(5)
    np.random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    asked(strategies.create(name, problem()))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # type: ignore[index]


@every
def test_it_hands_out_configs_as_they_are(name: str) -> None:
    before = [dict(config) for config in SMALL]
    proposed = asked(strategies.create(name, problem()))
    assert all(list(config) == [p.name for p in PARAMETERS] for config in proposed)
    assert before == SMALL


def test_two_configs_are_the_same_by_their_values() -> None:
    assert identity(SMALL[0]) == identity(dict(SMALL[0])) != identity(SMALL[1])


def test_grid_keeps_the_order_of_the_file() -> None:
    assert asked(strategies.create("grid", problem())) == SMALL


def test_auto_begins_with_what_is_known_then_follows_the_model() -> None:
    infeasible = {**BEST, "BLOCK_M": 256, "BLOCK_N": 256}
    turned = dict(reversed(list(SMALL[-1].items())))  # as a file edited by hand may have it
    known = [SMALL[9], infeasible, SMALL[9], turned, {"BLOCK_M": 64}]
    proposed = asked(strategies.create("auto", problem(first=known, trials=1000)))
    assert proposed[:2] == [SMALL[9], SMALL[-1]]
    assert list(proposed[1]) == list(SMALL[-1])
    assert covers(proposed, SMALL)
    expected = dict(zip(map(identity, SMALL), problem().expected_us, strict=True))
    later = [expected[identity(config)] for config in proposed[2:]]
    assert later == sorted(later)


def test_auto_mixes_the_model_and_tpe_when_not_all_can_be_tried() -> None:
    some = problem(FEASIBLE, trials=60)
    expected = dict(zip(map(identity, FEASIBLE), some.expected_us, strict=True))
    strategy = strategies.create("auto", some)
    proposed = []
    for _ in range(60):
        config = strategy.ask()
        assert config is not None
        proposed.append(expected[identity(config)])
        strategy.tell(good(config))
    assert proposed[:12] == sorted(expected.values())[:12]
    falls = sum(earlier > later for earlier, later in itertools.pairwise(proposed[12:]))
    assert 10 <= falls <= 30, "the model's picks alone would be in order"


def trials_until_best(name: str, seed: int) -> int:
    strategy = strategies.create(name, problem(FEASIBLE, seed=seed))
    for count in itertools.count(1):
        config = strategy.ask()
        assert config is not None
        if config == BEST:
            return count
        strategy.tell(good(config))
    raise AssertionError


def test_tpe_finds_a_planted_optimum_sooner_than_random() -> None:
    medians = {
        name: statistics.median(trials_until_best(name, seed) for seed in range(20))
        for name in ("random", "tpe")
    }
    assert medians["tpe"] < medians["random"] / 4  # 33 of 776 configs against 386


def test_tpe_keeps_away_from_what_fails() -> None:
    """A fifth of the space fails: fewer of its proposals do, and it comes near the best."""

    def fails(config: Config) -> bool:
        return bool(config["BLOCK_M"] <= 32 and config["LOADS"] == "tma")

    failing = sum(map(fails, FEASIBLE)) / len(FEASIBLE)
    assert failing > 0.2
    for seed in range(5):
        strategy = strategies.create("tpe", problem(FEASIBLE, seed=seed))
        proposed = []
        for _ in range(60):
            config = strategy.ask()
            assert config is not None
            proposed.append(config)
            strategy.tell(Trial(config, "timeout", "60 s") if fails(config) else good(config))
        assert sum(map(fails, proposed[20:])) / 40 < failing / 2
        assert min(map(landscape_us, proposed)) < 1.25 * landscape_us(BEST)
