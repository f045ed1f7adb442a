"""tunefa/search/decisive.py: what a search without a device still compiles, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.support.sample_problem import FEASIBLE, problem
from tunefa.costmodel.ranking import MODEL_ERROR
from tunefa.search import strategies
from tunefa.search.strategy import SearchProblem, Strategy
from tunefa.spec.trial import Config, Resources, Trial

SOME = FEASIBLE[::40]
"""Configs that differ in three parameters."""


def made(
    expected_us: Sequence[float],
    least_us: Mapping[int, float] | None = None,
    binaries: Sequence[int] | None = None,
    to_beat_us: float = math.inf,
    first: Sequence[Config] = (),
) -> tuple[SearchProblem, Strategy]:
    """A problem whose configs are expected to take `expected_us`, some of them perhaps less."""
    configs = SOME[: len(expected_us)]
    least = [(least_us or {}).get(place, us) for place, us in enumerate(expected_us)]
    kinds = list(range(len(configs))) if binaries is None else list(binaries)
    own = replace(
        problem(configs, first), expected_us=list(expected_us), least_us=least, binaries=kinds,
        to_beat_us=to_beat_us,
    )  # fmt: skip
    return own, strategies.create("auto", own)


def took(place: int, us: float, spill_bytes: int = 0) -> Trial:
    resources = Resources(spill_bytes=spill_bytes)
    return Trial(SOME[place], "ok", resources=resources, predicted_us=us)


def failed(place: int) -> Trial:
    return Trial(SOME[place], "compile_failed", "wgmma serialized")


def place(config: Config | None) -> int | None:
    return None if config is None else SOME.index(config)


def test_where_the_compiler_changes_nothing_one_config_is_compiled() -> None:
    """And a second one meanwhile, in case that the first fails."""
    _, strategy = made([30.0, 10.0, 20.0, 10.01])
    assert place(strategy.ask()) == 1
    assert place(strategy.ask()) == 3
    assert strategy.ask() is None, "the others are slower, if one of the two works"
    strategy.tell(took(1, 10.0))
    assert strategy.ask() is None


def test_when_it_fails_the_next_one_has_its_turn() -> None:
    _, strategy = made([30.0, 10.0, 20.0, 40.0])
    assert [place(strategy.ask()) for _ in range(3)] == [1, 2, None]
    strategy.tell(failed(1))
    assert place(strategy.ask()) == 0
    strategy.tell(took(2, 31.0))
    assert strategy.ask() is None, "the compiler made 2 slower than 0, which is in progress"
    strategy.tell(failed(0))
    assert strategy.ask() is None, "3 is slower than 2 has become"


def test_what_may_turn_out_faster_is_compiled_the_largest_gain_first() -> None:
    _, strategy = made([10.0, 11.0, 11.0, 12.0, 30.0], {1: 9.9, 2: 8.0, 3: 9.97})
    strategy.tell(took(0, 10.0))
    assert [place(strategy.ask()) for _ in range(3)] == [2, 1, None], "3 may gain 0.3 % only"
    strategy.tell(took(2, 11.0))
    strategy.tell(took(1, 9.0))
    assert strategy.ask() is None


def test_where_the_compiler_disappoints_it_is_expected_to_go_on() -> None:
    """Two standard deviations below 11 us are 9 us. Each config takes five more than expected."""
    expected = [10.0, *[11.0] * 19]
    _, strategy = made(expected, dict.fromkeys(range(1, 20), 9.0))
    strategy.tell(took(0, 10.0))
    asked = []
    while (config := strategy.ask()) is not None:
        asked.append(place(config))
        strategy.tell(took(SOME.index(config), 18.0))
    assert 1 < len(asked) < 6
    _, strategy = made(expected, dict.fromkeys(range(1, 20), 9.0))
    strategy.tell(took(0, 10.0))
    asked = []
    while (config := strategy.ask()) is not None:
        asked.append(place(config))
        strategy.tell(took(SOME.index(config), 11.0))
    assert len(asked) == 19, "as expected, so each of the others may still gain"


def test_where_the_compiler_surprises_well_nothing_takes_less_than_its_least_time() -> None:
    _, strategy = made([10.0, 11.0, 11.0, 11.0], {1: 9.0, 2: 9.0, 3: 9.4})
    strategy.tell(took(0, 10.0))
    assert place(strategy.ask()) == 1
    strategy.tell(took(1, 9.0))
    assert strategy.ask() is None, "9.0 us is the least of 2, and no gain; 3 takes more"


def test_one_binary_is_compiled_once() -> None:
    """Its siblings differ in what the host side reads: they fail with it, or gain as much."""
    _, strategy = made([10.0, 10.0, 12.0, 13.0], binaries=[0, 0, 1, 0])
    assert [place(strategy.ask()) for _ in range(3)] == [0, 2, None]
    strategy.tell(failed(0))
    strategy.tell(failed(2))
    assert strategy.ask() is None
    _, strategy = made([10.0, 10.0], binaries=[0, 0])
    strategy.tell(failed(0))
    assert strategy.ask() is None, "nothing is right, but 1 would fail too"
    _, strategy = made([10.0, 8.0, 9.0], {1: 5.0}, binaries=[0, 0, 1])
    strategy.tell(took(0, 12.0))
    assert place(strategy.ask()) == 2, "1 has the registers of 0, so it takes 9.6 us"
    strategy.tell(took(2, 10.0))
    assert place(strategy.ask()) == 1
    strategy.tell(took(1, 9.6))
    assert strategy.ask() is None


def test_what_cannot_run_by_formulas_is_tried_only_while_nothing_is_right() -> None:
    _, strategy = made([math.inf, 0.0, 10.0])
    strategy.tell(failed(2))
    assert place(strategy.ask()) == 0
    strategy.tell(took(0, 50.0))
    assert strategy.ask() is None


def test_nothing_is_compiled_that_does_not_beat_what_is_known() -> None:
    _, strategy = made([10.0, 11.0], {1: 9.0}, to_beat_us=8.0)
    assert strategy.ask() is None
    _, strategy = made([10.0, 11.0], {1: 7.0}, to_beat_us=8.0)
    assert place(strategy.ask()) == 1 and strategy.ask() is None


def test_where_the_best_known_config_fails_another_is_found() -> None:
    _, strategy = made([10.0, 11.0, 12.0], to_beat_us=8.0, first=[SOME[2]])
    assert [place(strategy.ask()) for _ in range(2)] == [2, None]
    strategy.tell(failed(2))
    assert place(strategy.ask()) == 0
    strategy.tell(took(0, 10.0))
    assert strategy.ask() is None
    _, strategy = made([10.0, 11.0], to_beat_us=8.0)
    strategy.tell(Trial({**SOME[0], "BLOCK_M": 7}, "crashed", "the default is not searched"))
    assert place(strategy.ask()) == 0


def test_known_configs_come_first_in_any_case() -> None:
    _, strategy = made([10.0, 11.0, 12.0], to_beat_us=8.0, first=[SOME[2], SOME[1]])
    assert [place(strategy.ask()) for _ in range(3)] == [2, 1, None]


def test_a_config_that_spills_is_not_yet_the_best() -> None:
    _, strategy = made([10.0, 10.5, 13.0])
    strategy.tell(took(0, 10.0, spill_bytes=64))
    assert place(strategy.ask()) == 1
    strategy.tell(took(1, 10.0 * (1 + MODEL_ERROR) * 1.01))
    assert strategy.ask() is None


def test_a_default_that_is_not_searched_counts_too() -> None:
    _, strategy = made([10.0, 11.0])
    strategy.tell(Trial({**SOME[0], "BLOCK_M": 7}, "ok", predicted_us=9.0))
    assert strategy.ask() is None
