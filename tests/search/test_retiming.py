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


class Written:
    """Stands in for a journal."""

    def __init__(self) -> None:
        self.lines: list[Trial] = []

    def append(self, kernel: str, *trials: Trial) -> None:
        assert kernel == KERNEL.name
        self.lines.extend(trials)


class Timing:
    """Stands in for the objective: a config takes BLOCK_M us more than its trial said."""

    is_lost = False

    def __init__(self) -> None:
        self.tiles: list[int] = []

    def retime(self, trial: Trial) -> Trial | None:
        self.tiles.append(trial.config["BLOCK_M"])
        more = (trial.samples_us[0],) * 5
        return None if self.is_lost else replace(trial, samples_us=(*trial.samples_us, *more))


@pytest.fixture
def state() -> SearchState:
    asked = replace(request(), measured=True, finalists=2)
    made = SearchState(asked, Seen(), *cast(Any, (Written(), None, None)))
    default = KERNEL.default(asked.workload, asked.target.arch)
    for tile in TILES:
        config = {**default, "BLOCK_M": tile}
        made.count(KERNEL.name, Trial(config, "ok", samples_us=(float(tile),) * 5))
    made.count(KERNEL.name, Trial({**default, "BLOCK_M": 8}, "wrong"))
    made.count("another", Trial(default, "ok", samples_us=(1.0,) * 5))
    return made


def test_those_that_would_be_finalists_get_enough_samples(state: SearchState) -> None:
    timing: Any = Timing()
    made = Retiming(timing, state, KERNEL.name)
    rounds = 0
    while made.again():
        rounds += 1
    assert timing.tiles == [16, 32] * (ENOUGH_SAMPLES // 5 - 1) and rounds == len(timing.tiles)
    counts = {t.config["BLOCK_M"]: len(t.samples_us) for t in state.trials_of(KERNEL.name)}
    assert counts == {8: 0, 16: ENOUGH_SAMPLES, 32: ENOUGH_SAMPLES, 64: 5, 128: 5}
    written: Any = state.journal
    assert len(written.lines) == rounds and len(written.lines[-1].samples_us) == ENOUGH_SAMPLES


def test_a_lost_process_ends_it(state: SearchState) -> None:
    timing: Any = Timing()
    timing.is_lost = True
    assert not Retiming(timing, state, KERNEL.name).again()
    assert timing.tiles == [16]
    written: Any = state.journal
    assert not written.lines


def test_nothing_is_timed_again_where_no_gpu_is_shared_or_nothing_is_measured(
    state: SearchState,
) -> None:
    part = cast(Part, type("Part", (), {"name": KERNEL.name}))
    measured, other = Measured.__new__(Measured), cast(Any, Timing())
    assert retiming.of(state, part, measured) is None, "it has the GPU alone"
    state.turn = Turns().new("a", 1.0)
    assert retiming.of(state, part, other) is None
    assert retiming.of(state, part, measured) is not None
