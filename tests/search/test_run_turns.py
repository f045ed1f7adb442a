"""tunefa/search/run.py where searches share a GPU: the races of one leave time to others."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.support.clock import Clock
from tests.support.fake_objective import KERNEL, Fake, Seen, request, user_store
from tests.support.processes import Shared
from tunefa.compile.workers import Workers
from tunefa.measure.objective import Raced
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.search.gpu_turns import Turns
from tunefa.search.parts import Part
from tunefa.search.request import Processes
from tunefa.search.state import SearchState
from tunefa.search.stopping import StoppingRule
from tunefa.search.winner import Winner
from tunefa.spec.trial import Trial


def test_a_race_that_cannot_be_won_is_left_out_where_it_would_be_late(clock: Clock) -> None:
    asked = replace(request(), measured=True, budget=Budget(seconds=20.0))
    made = SearchState(asked, Seen(), *cast(Any, (None, None, None)))
    case = asked.case(KERNEL)
    trial = Trial(case.default(), "ok", samples_us=(1e3,) * 5)
    part = Part(case, case.feasible(), [], [case.default()], [], 1.0, trial)
    behind = StoppingRule(to_beat_us=100.0, best_us=1e3)
    made.winners.append(Winner(KERNEL, trial, None, "eager"))
    clock.sleep(19.6)
    assert not search._is_left_out(made, part, behind), "its GPU is its own"
    made.turn = Turns().new("a", 1.0)
    assert search._is_left_out(made, part, behind)
    assert not search._is_left_out(made, part, replace(behind, to_beat_us=950.0)), "it may win"
    made.winners.clear()
    assert not search._is_left_out(made, part, behind), "there is no record without it"
    made.request = replace(asked, budget=Budget(seconds=20.0))
    made.winners.append(Winner(KERNEL, trial, None, "eager"))
    assert not search._is_left_out(made, part, behind), "there is time"


def test_a_turn_is_told_how_long_races_take(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    told: list[tuple[float, float]] = []
    turn = Turns().new("a", 1.0)
    monkeypatch.setattr(turn, "raced", lambda *seconds: told.append(seconds))
    race = fake.race

    def slow(self: Fake, *asked: Any) -> Raced:
        clock.sleep(3.0)
        return race(self, *asked)

    monkeypatch.setattr(fake, "race", slow)
    compilers: Any = Shared(count=1, lasting=True, apart=True, submit=lambda *_: Future[Any]())
    shared = Processes(Workers(1), compilers, turn=turn)
    result = search.search(
        replace(request(), budget=Budget(trials=8)), user_store(), Seen(), shared
    )
    ((planned_s, took_s),) = told
    assert took_s == pytest.approx(3.0) and 0.0 < planned_s < took_s and result.record
