"""tunefa/search/retiming.py: the best configs are timed again while a search waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.support.fake_objective import KERNEL, Seen, request
from tunefa.measure.measured import Measured
from tunefa.search import retiming
from tunefa.search.gpu_turns import Turns
from tunefa.search.parts import Part
from tunefa.search.retiming import ENOUGH_SAMPLES, Retiming
from tunefa.search.state import SearchState
from tunefa.spec.trial import Trial

TILES = (16, 32, 64, 128)
LEFT_S = 9.0


class Timing:
    """Stands in for the objective: later samples of the largest tile are the shortest."""

    lost: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.tiles: list[int] = []

    def retime(self, trial: Trial, left_s: float) -> Trial | None:
        assert left_s == LEFT_S
        self.tiles.append(tile := trial.config["BLOCK_M"])
        more = (1.0 if tile == 32 else float(tile),) * 5
        return None if tile in self.lost else replace(trial, samples_us=trial.samples_us + more)


@pytest.fixture
def state() -> SearchState:
    asked = replace(request(), measured=True, finalists=2)
    made = SearchState(asked, Seen(), *cast(Any, (None, None, None)))
    default = KERNEL.default(asked.workload, asked.target.arch)
    for tile in TILES:
        config = {**default, "BLOCK_M": tile}
        made.count(KERNEL.name, Trial(config, "ok", samples_us=(float(tile),) * 5))
    made.count(KERNEL.name, Trial({**default, "BLOCK_M": 8}, "wrong"))
    made.count("another", Trial(default, "ok", samples_us=(1.0,) * 5))
    return made


def part_of(*earlier: Trial) -> Part:
    case = request().case(KERNEL)
    return Part(case, case.feasible(), [], [], list(earlier), 1.0)


def test_those_that_would_be_finalists_get_enough_samples(state: SearchState) -> None:
    timing: Any = Timing()
    before = state.trials_of(KERNEL.name)
    made = Retiming(timing, state, part_of())
    rounds = 0
    while made.again(LEFT_S):
        rounds += 1
    assert sorted(timing.tiles) == sorted([16, 32] * (ENOUGH_SAMPLES // 5 - 1))
    assert rounds == len(timing.tiles)
    assert {len(each.samples_us) for each in made.found.values()} == {ENOUGH_SAMPLES}
    assert state.trials_of(KERNEL.name) == before, "only who races depends on it"
    first = [each.config["BLOCK_M"] for each in retiming.ranked(before, {})]
    by_all = [each.config["BLOCK_M"] for each in retiming.ranked(before, made.found)]
    assert (first, by_all) == ([16, 32, 64, 128], [32, 16, 64, 128])
    assert all(len(each.samples_us) == 5 for each in retiming.ranked(before, made.found))


def test_a_config_that_loses_the_device_is_not_timed_again(state: SearchState) -> None:
    timing: Any = Timing()
    timing.lost = (16,)
    made = Retiming(timing, state, part_of())
    assert not made.again(LEFT_S) and made.again(LEFT_S) and made.again(LEFT_S)
    assert timing.tiles == [16, 32, 32]


def test_configs_of_an_earlier_search_are_left_as_they_are(state: SearchState) -> None:
    timing: Any = Timing()
    earlier = [each for each in state.trials_of(KERNEL.name) if each.config["BLOCK_M"] == 16]
    made = Retiming(timing, state, part_of(*earlier))
    assert made.again(LEFT_S) and timing.tiles == [32]


def test_nothing_is_timed_again_where_no_gpu_is_shared_or_nothing_is_measured(
    state: SearchState,
) -> None:
    measured, other = Measured.__new__(Measured), cast(Any, Timing())
    assert retiming.of(state, part_of(), measured) is None, "it has the GPU alone"
    state.turn = Turns().new("a", 1.0)
    assert retiming.of(state, part_of(), other) is None
    assert retiming.of(state, part_of(), measured) is not None
