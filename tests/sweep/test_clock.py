"""tunefa/sweep/clock.py: what is left of a sweep's budget."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace

import pytest
from optuna.trial import TrialState, create_trial

from tunefa.search.budget import Budget
from tunefa.sweep.clock import NOTE, Clock
from tunefa.sweep.slices import Slice


def made(**attrs: object) -> Slice:
    return Slice.of(create_trial(value=1.0, user_attrs=attrs))


def test_seconds_go_on_where_they_ended() -> None:
    clock = Clock.started(Budget(seconds=40.0), spent_s=15.0)
    assert clock.left([]) == pytest.approx(25.0, abs=0.5)
    assert clock.spent([]) == pytest.approx(15.0, abs=0.5)
    assert clock.until == pytest.approx(time.time() + 25.0, abs=0.5)
    assert Clock.of({NOTE: json.loads(json.dumps(clock.to_data()))}) == clock


def test_seconds_count_from_the_start_of_the_budget() -> None:
    budget = Budget(seconds=40.0, start=time.monotonic() - 5.0)
    assert Clock.started(budget, spent_s=15.0).left([]) == pytest.approx(20.0, abs=0.5)


def test_trials_are_those_of_slices_done_and_in_progress() -> None:
    clock = Clock.started(Budget(trials=100), spent_s=15.0)
    running = create_trial(state=TrialState.RUNNING, value=None, user_attrs={"amount": 16.0})
    lost = create_trial(state=TrialState.FAIL, value=None, user_attrs={"amount": 16.0})
    slices = [made(amount=16.0, found={"used": 9.0}), Slice.of(running), Slice.of(lost)]
    assert clock.left(slices) == 75.0 and clock.spent(slices) == 25.0
    assert clock.left([made(amount=1e6, found={})]) == 0.0
    assert Clock.of({NOTE: json.loads(json.dumps(clock.to_data()))}) == clock
    assert math.isinf(clock.until)


def test_the_budget_of_a_slice() -> None:
    trials = Clock(None, 100)
    assert trials.slice_budget(16.0, 9) == Budget(trials=25)
    seconds = Clock(40.0, None, 0.0)
    budget = seconds.slice_budget(12.0, 9)
    assert budget.seconds == 12.0 and budget.floor_s == 0.0
    amounts = [seconds.amounts(True), seconds.amounts(False), trials.amounts(True)]
    assert len(set(amounts)) == 3 and all(0 < each.least <= each.most for each in amounts)
    assert replace(seconds, until=time.time() - 5).left([]) < 0
