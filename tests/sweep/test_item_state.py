"""tunefa/sweep/item_state.py: what slices make of the standing of an item."""

from __future__ import annotations

from typing import Any

import pytest

from tunefa.spec.workload import Workload
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.item_state import MOST_FAILURES, Standing, standings
from tunefa.sweep.slices import Slice

A, B = Workload.parse("q512"), Workload.parse("bwd_q512")
BEGIN = [Standing("a", 2.0, A), Standing("b", 1.0, B)]


def part(key: str = "a", found: dict[str, Any] | None = None, **changes: Any) -> Slice:
    made: dict[str, Any] = {
        "id": 0, "number": 0, "is_running": False, "key": key, "amount": 5.0,
        "worker": HostProcess("", 0, ""), "began": 0.0, "beat": {}, "found": found, "lost": "",
        "counts": True,
    }  # fmt: skip
    return Slice(**{**made, **changes})


def found(best_us: float | None, **more: Any) -> dict[str, Any]:
    return {"best_us": best_us, "default_us": 100.0, "used": 4.0, "trials": 7, **more}


def test_a_record_makes_a_gain() -> None:
    first, second = standings(BEGIN, [part(found=found(80.0, hoped=0.05))])
    assert first.gain == pytest.approx(0.2) and first.saved == pytest.approx(0.4)
    assert (first.spent, first.trials, first.hoped, first.is_begun) == (4.0, 7, 0.05, True)
    assert second == BEGIN[1] and second.gain == 0.0


def test_the_last_slice_counts_and_budgets_add_up() -> None:
    (first, _) = standings(BEGIN, [part(found=found(80.0)), part(found=found(75.0, settled=True))])
    assert (first.best_us, first.spent, first.is_settled) == (75.0, 8.0, True)


def test_a_record_slower_than_the_default_is_no_loss() -> None:
    assert standings(BEGIN, [part(found=found(105.0))])[0].gain == 0.0


def test_failures_in_a_row_give_an_item_up() -> None:
    lost = part(lost="its worker was lost")
    assert standings(BEGIN, [lost] * MOST_FAILURES)[0].is_given_up
    assert standings(BEGIN, [part(found=found(None))] * MOST_FAILURES)[0].is_given_up
    mixed = [*[lost] * (MOST_FAILURES - 1), part(found=found(80.0)), lost]
    assert standings(BEGIN, mixed)[0].failures == 1
    ended = part(lost="the sweep was ended", counts=False)
    assert standings(BEGIN, [ended] * 10)[0].failures == 0


def test_one_that_runs_is_busy_and_others_are_left_out() -> None:
    first, second = standings(BEGIN, [part(is_running=True), part("other", found(1.0))])
    assert first.is_busy and not second.is_busy
