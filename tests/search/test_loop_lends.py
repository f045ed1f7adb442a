"""tunefa/search/loop.py: when a search that waits for compilers lends the GPU to others."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.fake_objective import KERNEL, Fake, request
from tests.support.numbered_configs import Numbers
from tunefa.search import lending, loop
from tunefa.search.budget import FLOOR_S, Budget
from tunefa.search.gpu_turns import Turns
from tunefa.search.share import Share
from tunefa.search.stopping import StoppingRule
from tunefa.spec.trial import Trial

OTHERS_S = 1.0
"""The trial of another search takes so long."""
FOUND = Trial({"A": 9}, "ok", predicted_us=100.0)


class Slow(Fake):
    """Its compilers need a minute for each config."""

    asked_s: list[float]

    def __init__(self, clock: Clock) -> None:
        super().__init__(request().case(KERNEL))
        self.clock, self.asked_s = clock, []

    def is_ready(self, wait_s: float) -> bool:
        self.clock.sleep(wait_s)
        return False

    def next(self, wait_s: float = math.inf) -> Trial | None:
        self.asked_s.append(wait_s)
        self.clock.sleep(wait_s)
        return None


class Lends:
    """A turn. Another search tries a config each time that it is lent, and is not ready itself."""

    is_wanted = False

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lent_at: list[float] = []

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        self.lent_at.append(self.clock.now)
        yield
        self.clock.sleep(OTHERS_S)


def waited(clock: Clock, seconds: float, *earlier: Trial) -> tuple[Slow, Lends, float, bool]:
    """Returns the waits and loans of a search, when it ended, in seconds after its start, and
    whether it gave way."""
    evaluator, turn, start = Slow(clock), Lends(clock), clock.now
    asked: Any = turn
    share = Share(Budget(seconds=seconds), 1.0, 0, 0.0, turn=asked)
    stopping = StoppingRule().resumed(earlier)
    if not earlier:
        stopping.to_beat_us = 80.0  # another kernel has something right
    assert list(loop.trials(Numbers(), evaluator, share, stopping)) == []
    turn.lent_at = [at - start for at in turn.lent_at]
    return evaluator, turn, clock.now - start, stopping.gave_way


@pytest.mark.parametrize("seconds", [0.5, 1.4, 5.0, 10.3])
def test_a_search_that_lends_ends_in_time(clock: Clock, seconds: float) -> None:
    evaluator, turn, took_s, gave_way = waited(clock, seconds, FOUND)
    assert took_s <= seconds
    assert all(at <= seconds - lending.LENDS_S for at in turn.lent_at)
    assert bool(turn.lent_at) == (seconds >= lending.LENDS_S)
    assert evaluator.asked_s == [], "no time is left for a trial"
    if seconds >= lending.LENDS_S:
        assert took_s > seconds - lending.LENDS_S - OTHERS_S
    assert gave_way, "what it had left is no sign that nothing is left to try"


@pytest.mark.parametrize("seconds", [0.5, 1.4])
def test_a_search_waits_out_no_time_that_is_too_short_to_lend(clock: Clock, seconds: float) -> None:
    _, turn, took_s, gave_way = waited(clock, seconds, FOUND)
    assert turn.lent_at == [] and gave_way
    assert took_s == 0.0


def test_what_is_late_waits_no_longer(clock: Clock) -> None:
    evaluator, turn, took_s, _ = waited(clock, 0.1)
    assert evaluator.asked_s == [0.0], "the time that lending took is over"
    assert turn.lent_at and took_s == pytest.approx(FLOOR_S)


class Cached(Slow):
    """The first config is compiled already."""

    width = 8

    def is_ready(self, wait_s: float) -> bool:
        return not self.asked_s or super().is_ready(wait_s)

    def next(self, wait_s: float = math.inf) -> Trial | None:
        self.asked_s.append(wait_s)
        return Trial({"A": 1}, "ok", predicted_us=100.0)


@pytest.mark.parametrize(("compile_s", "asked"), [(9.0, 1), (0.01, 8)])
def test_nothing_is_compiled_for_a_search_that_will_be_over(
    clock: Clock, compile_s: float, asked: int
) -> None:
    evaluator, strategy = Cached(clock), Numbers()
    turn: Any = Lends(clock)
    own = Share(Budget(seconds=10.0), 1.0, 0, 0.0, turn=turn)
    slow = [replace(FOUND, config={"A": 100 + number}, compile_s=compile_s) for number in range(3)]
    assert next(loop.trials(strategy, evaluator, own, StoppingRule().resumed(slow)))
    assert strategy.asked == 8, "it has 10 s"
    strategy = Numbers()
    own = replace(own, budget=Budget(seconds=7.0))
    assert next(loop.trials(strategy, Cached(clock), own, StoppingRule().resumed(slow)))
    assert strategy.asked == asked
    without = replace(own, turn=None)
    assert not without.is_too_late(StoppingRule().resumed(slow), clock.now)


class Idle(Lends):
    """No other search has a config to try until `from_s` of the clock."""

    from_s = math.inf

    @property
    def has_borrowers(self) -> bool:
        return self.clock.now >= self.from_s


@pytest.mark.parametrize("from_s", [2.0, math.inf])
def test_a_search_that_waits_uses_the_gpu_unless_others_do(clock: Clock, from_s: float) -> None:
    turn, used, start = Idle(clock), list[float](), clock.now
    turn.from_s = start + from_s

    def meanwhile(left_s: float) -> bool:
        assert left_s == pytest.approx(10.0 - (clock.now - start))
        used.append(clock.now - start)
        clock.sleep(0.1)
        return len(used) < 30

    asked: Any = turn
    share = Share(Budget(seconds=10.0), 1.0, 0, 0.0, turn=asked, meanwhile=meanwhile)
    stopping = StoppingRule().resumed([FOUND])
    assert list(loop.trials(Numbers(), Slow(clock), share, stopping)) == []
    assert used and used == sorted(used) and used[-1] < from_s
    assert turn.lent_at and turn.lent_at[0] - start >= min(from_s, 3.0)
    if math.isinf(from_s):
        assert len(used) >= 30, "it goes on to lend where nothing is left to time"


def test_a_reserve_that_races_have_shown_is_kept(clock: Clock) -> None:
    evaluator = Fake(request().case(KERNEL))
    evaluator.pause_s, evaluator.reserve_s = 2.0, 60.0  # without a turn, it would end at 40 s
    own = Share(Budget(seconds=100.0), 1.0, 0, 5.0, turn=Turns().new("", 1.0))
    start = clock.now
    assert list(loop.trials(Numbers(), evaluator, own, StoppingRule()))
    assert clock.now - start == pytest.approx(95.0, abs=2.0)
