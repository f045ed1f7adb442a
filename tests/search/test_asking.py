"""tunefa/search/asking.py: how many configs a search has in progress."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.support.clock import Clock
from tests.support.fake_objective import KERNEL, Fake, request
from tests.support.numbered_configs import FREE, Numbers
from tunefa.compile.pool import Rank
from tunefa.search import asking, loop
from tunefa.search.asking import Asking
from tunefa.search.budget import Budget
from tunefa.search.gpu_turns import Turns
from tunefa.search.share import Share
from tunefa.search.stopping import StoppingRule
from tunefa.spec.trial import Config, Trial, identity

FOUND = Trial({"A": -1}, "ok", predicted_us=100.0)


class Waits(Fake):
    """Its compilers are at work; whoever waits for one has it. Configs from FREE on need none."""

    width = 8

    def is_ready(self, wait_s: float) -> bool:
        return wait_s > 0.0 or any(config["A"] >= FREE for config in self.pending)


def fake() -> Fake:
    return Fake(request().case(KERNEL))


def share(turn: Any = None) -> Share:
    return Share(Budget(seconds=100.0), 1.0, 0, 0.0, turn=turn)


def test_with_the_gpu_it_asks_for_little_where_the_strategy_takes_its_time(clock: Clock) -> None:
    class Slow(Numbers):
        pause_s = 0.02

        def ask(self, compiled: bool = False) -> Config | None:
            time.sleep(self.pause_s if self.asked >= 4 else 0.0)  # four are prepared
            return super().ask()

    own = replace(share(Turns().new("", 1.0)), budget=Budget(trials=20))
    evaluator, strategy, asked = fake(), Slow(), []
    evaluator.width = 8
    for _ in loop.trials(strategy, evaluator, own, StoppingRule()):
        asked.append(strategy.asked)
    assert asked[:3] == [5, 7, 9], "what is prepared at once, then two for each trial"
    strategy = Slow()
    next(loop.trials(strategy, evaluator, replace(own, turn=None), StoppingRule()))
    assert strategy.asked == 8, "without others that wait for the GPU"


def made(evaluator: Fake, strategy: Numbers, turn: Any, *earlier: Trial) -> Asking:
    stopping = StoppingRule().resumed(earlier)
    return Asking(strategy, evaluator, share(turn), stopping, time.monotonic() + 100.0)


@pytest.mark.parametrize(("free", "on_top"), [(0, 0), (3, 3), (50, asking._ON_TOP)])
def test_while_the_gpu_would_wait_it_asks_for_what_needs_no_compiler(
    clock: Clock, free: int, on_top: int
) -> None:
    ranks: list[Rank] = []

    class Slow(Waits):
        def is_ready(self, wait_s: float) -> bool:
            return False

        def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
            ranks.append(rank)
            super().submit(config, rank)

    evaluator, strategy = Slow(request().case(KERNEL)), Numbers(free)
    own = made(evaluator, strategy, Turns().new("", 1.0), FOUND)
    own.ask_more()
    own.ask_compiled()
    assert own.on_top == {identity({"A": FREE + number}) for number in range(on_top)}
    assert own.in_progress == own.submitted == Slow.width + on_top
    assert ranks == Slow.width * [Rank.NOW] + on_top * [Rank.COMPILED], "they come first"
    before = strategy.asked
    for number in range(on_top):
        assert not own.ended(Trial({"A": FREE + number}, "ok", predicted_us=120.0))
    own.ask_more()
    assert strategy.asked == before and own.in_progress == Slow.width, "they took no other's place"
    assert own.ended(Trial({"A": 0}, "ok", predicted_us=120.0))
    own.ask_more()
    assert strategy.asked == before + 1


def test_it_asks_for_no_more_of_them_than_the_gpu_needs(clock: Clock) -> None:
    evaluator, strategy = Waits(request().case(KERNEL)), Numbers(50)
    own = made(evaluator, strategy, Turns().new("", 1.0), FOUND)
    own.ask_more()
    own.ask_compiled()
    assert len(own.on_top) == 1, "the GPU has a config to try"


@pytest.mark.parametrize(("shares", "earlier"), [(False, (FOUND,)), (True, ())])
def test_without_others_or_a_right_config_it_does_not(
    clock: Clock, shares: bool, earlier: tuple[Trial, ...]
) -> None:
    evaluator, strategy = Waits(request().case(KERNEL)), Numbers(50)
    own = made(evaluator, strategy, Turns().new("", 1.0) if shares else None, *earlier)
    own.ask_more()
    own.ask_compiled()
    assert strategy.asked_free == 0 and not own.on_top


def test_what_needs_no_compiler_is_within_the_budget_too(clock: Clock) -> None:
    strategy = Numbers(1000)
    turn: Any = Turns().new("", 1.0)
    own = replace(share(turn), budget=Budget(trials=30))
    stopping = StoppingRule().resumed([FOUND])
    evaluator = Waits(request().case(KERNEL))
    found = list(loop.trials(strategy, evaluator, own, stopping))
    assert len(found) == 30 and 0 < sum(trial.config["A"] >= FREE for trial in found) < 30
    assert stopping.done == 1 + sum(trial.config["A"] < FREE for trial in found)


@pytest.mark.parametrize(("left_s", "asks"), [(100.0, True), (1.4, False)])
def test_near_the_end_nothing_is_asked_for_that_has_no_time(
    clock: Clock, left_s: float, asks: bool
) -> None:
    evaluator, strategy = Waits(request().case(KERNEL)), Numbers(50)
    own = made(evaluator, strategy, Turns().new("", 1.0), FOUND)
    own.until = time.monotonic() + left_s
    own.ask_more()
    own.ask_compiled()
    assert bool(own.on_top) == asks
