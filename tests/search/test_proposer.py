"""tunefa/search/proposer.py: what a kernel's search begins with, and when it gives up."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.support.clock import Clock
from tests.support.fake_objective import KERNEL, Seen, request
from tunefa.search import proposer
from tunefa.search.budget import LOOK_S, Budget
from tunefa.search.parts import Part
from tunefa.search.state import SearchState
from tunefa.search.winner import Winner
from tunefa.spec.space import Feasible
from tunefa.spec.trial import Config, Trial


class Letters:
    """Proposes c and d; remembers what it was told."""

    def __init__(self) -> None:
        self.left, self.told = ["c", "d"], list[Config]()

    def ask(self, compiled: bool = False) -> Config | None:
        return {"A": self.left.pop(0)} if self.left else None

    def tell(self, trial: Trial) -> None:
        self.told.append(trial.config)


def test_what_was_asked_early_comes_first() -> None:
    strategy = Letters()
    early = proposer.AskedEarly(strategy, [{"A": "a"}, {"A": "b"}])
    asked = [config and config["A"] for config in (early.ask() for _ in range(5))]
    assert asked == ["a", "b", "c", "d", None]
    early.tell(Trial({"A": "a"}, "ok", predicted_us=1.0))
    assert strategy.told == [{"A": "a"}]


def test_what_was_asked_early_may_need_a_compiler() -> None:
    early = proposer.AskedEarly(Letters(), [{"A": "a"}])
    asked = [early.ask(compiled=True), early.ask(), early.ask()]
    assert asked == [{"A": "c"}, {"A": "a"}, {"A": "d"}]


def test_what_was_tried_before_its_turn_is_not_asked_for_again() -> None:
    early = proposer.AskedEarly(Letters(), [{"A": "a"}, {"A": "b"}])
    early.tell(Trial({"A": "a"}, "ok", predicted_us=1.0))
    assert [early.ask(), early.ask()] == [{"A": "b"}, {"A": "c"}]


@pytest.mark.parametrize(
    ("behind", "left_s", "lost"),
    [(True, 2 * LOOK_S - 1, True), (True, 2 * LOOK_S + 1, False), (False, 1.0, False)],
)
def test_a_kernel_that_is_behind_needs_time_for_a_look(
    clock: Clock, behind: bool, left_s: float, lost: bool
) -> None:
    asked, nothing = request(measured=True, budget=Budget(seconds=100.0)), cast(Any, None)
    clock.sleep(100.0 - left_s)
    state = SearchState(asked, Seen(), nothing, nothing, None)
    state.winners = [Winner(KERNEL, Trial({}, "ok", samples_us=(10.0,)), None, "eager")]
    case = asked.case(KERNEL)
    opened = Trial(case.default(), "ok", samples_us=(20.0,))
    part = Part(case, Feasible((), {}), [], [opened.config], [], 1.0, opened, behind=behind)
    rule = proposer.stopping_rule(state, part)
    assert (rule.to_beat_us, rule.best_us, rule.right) == (10.0, 20.0, 1)
    assert rule.lost is lost


def test_the_opening_s_trial_is_known_once() -> None:
    case = request().case(KERNEL)
    opened = Trial(case.default(), "ok", samples_us=(20.0,))
    part = Part(case, Feasible((), {}), [], [opened.config], [], 1.0)
    assert part.tried == []
    assert Part(case, part.feasible, [], part.first, [], 1.0, opened).tried == [opened]
    assert Part(case, part.feasible, [], part.first, [opened], 1.0, opened).tried == [opened]
    early = Trial({"A": "a"}, "ok", samples_us=(19.0,))
    made = Part(case, part.feasible, [], part.first, [], 1.0, opened, early=[early])
    assert made.tried == [opened, early]
