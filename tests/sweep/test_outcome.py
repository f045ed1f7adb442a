"""tunefa/sweep/outcome.py: what a sweep has come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.sweeping import made, plan
from tunefa.errors import TunefaError
from tunefa.search.budget import Budget
from tunefa.sweep import clock as clocks
from tunefa.sweep import seat, worker
from tunefa.sweep.clock import Clock
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.outcome import Outcome, check, finished, outcome
from tunefa.sweep.requests import Items
from tunefa.sweep.study import SweepStudy


def told(best_us: float | None, at: float, **more: object) -> dict[str, object]:
    return {"best_us": best_us, "default_us": 100.0, "used": 10.0, "at": at, "trials": 5, **more}


@pytest.fixture
def held(tmp_path: Path) -> SweepStudy:
    study = made(tmp_path)
    study.note(clocks.NOTE, Clock.started(Budget(trials=100), 0.0).to_data())
    return study


def slices(study: SweepStudy, *found: dict[str, object]) -> list[str]:
    """Completed slices of the items, in turn; returns the keys."""
    keys = [each.key for each in Items.of(study.plan, worker.targets(study.plan)).items]
    for place, each in enumerate(found):
        claimed = study.claim(keys[place % len(keys)], 10.0, HostProcess.here("worker 1"))
        assert claimed is not None
        study.complete(claimed, each)
    return keys


def test_weighted_time_saved_and_left(held: SweepStudy) -> None:
    first, second, third = slices(
        held, told(90.0, 10.0, hoped=0.05), told(80.0, 20.0, hoped=0.0, settled=True)
    )
    made = outcome(held)
    assert [each.weight for each in made.items] == [4.0, 2.0, 1.0] and made.weight == 7.0
    assert made.saved == pytest.approx(4 * 0.1 + 2 * 0.2)
    assert made.expected[second] == 0.0 and made.expected[third] > 0.0
    assert made.hoped == pytest.approx(4 * 0.05 * 0.9 + made.expected[third])
    assert [each.key for each in made.missing] == [third]
    assert made.last(first)["best_us"] == 90.0 and made.last(third) == {}
    assert made.spent == 20.0 and finished(made.slices) == 2
    assert set(made.busy_s()) == {"worker 1"}


def test_the_course_is_what_was_saved_after_each_slice(held: SweepStudy) -> None:
    slices(held, told(90.0, 30.0), told(80.0, 20.0), told(None, 40.0), told(85.0, 50.0))
    course = outcome(held).course
    assert [at for at, _ in course] == [20.0, 30.0, 40.0, 50.0]
    assert [saved for _, saved in course] == pytest.approx([0.4, 0.8, 0.8, 1.0])


def test_what_was_put_aside_or_left_out_is_said(held: SweepStudy) -> None:
    keys = slices(held, told(90.0, 30.0))
    held.note(f"{seat.ASIDE}GPU 1 of host", "it throttles")
    held.note(f"{seat.ASIDE}GPU 2 of host", None)
    held.note(f"{seat.REFUSED}{keys[2]}", "no kernel")
    made = outcome(held, {"GPU 0": "lost"}, interrupted=True)
    assert made.aside == {"GPU 1 of host": "it throttles"} and made.errors == {"GPU 0": "lost"}
    assert made.refused == {keys[2]: "no kernel"} and made.interrupted
    assert keys[2] not in {each.key for each in made.items}


def test_of_measured_sweeps_the_items_are_those_of_the_gpus_that_took_part(tmp_path: Path) -> None:
    study = made(tmp_path, plan(targets=()))
    study.note(clocks.NOTE, Clock.started(Budget(trials=100), 0.0).to_data())
    assert outcome(study).items == ()
    key = Items.of(plan(), worker.targets(plan())).items[0].key
    claimed = study.claim(key, 10.0, HostProcess.here())
    assert claimed is not None
    assert len(outcome(study).items) == 3 and outcome(study).items[0].is_busy


def test_a_sweep_without_anything_is_an_error(held: SweepStudy) -> None:
    empty = outcome(held)
    check(empty)  # there was no time
    with pytest.raises(TunefaError, match="GPU 0 ended: the disk is full"):
        check(replace(empty, errors={"GPU 0": "the disk is full"}))
    with pytest.raises(TunefaError, match="no kernel"):
        check(replace(empty, items=(), refused={"a": "no kernel", "b": "no kernel"}))
    check(replace(empty, errors={"GPU 0": "lost"}, interrupted=True))
    slices(held, told(90.0, 30.0))
    some: Outcome = outcome(held, {"GPU 0": "lost"})
    check(some)
