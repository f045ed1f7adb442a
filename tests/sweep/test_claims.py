"""tunefa/sweep/claims.py: what a worker claims."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.sweeping import made, plan
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.sweep import worker
from tunefa.sweep.allocate import SECONDS, TRIALS
from tunefa.sweep.claims import Claims
from tunefa.sweep.clock import Clock
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.requests import Items
from tunefa.sweep.slices import Slice
from tunefa.sweep.study import SweepStudy


@pytest.fixture
def held(tmp_path: Path) -> SweepStudy:
    return made(tmp_path, plan())


def claims(held: SweepStudy, name: str, clock: Clock | None = None) -> Claims:
    items = Items.of(held.plan, worker.targets(held.plan))
    clock = clock or Clock(None, 60)
    amounts = SECONDS["measured"] if clock.trials is None else TRIALS
    return Claims(held, items, HostProcess.here(name), clock, amounts)


def lengths(*found: Any) -> list[int]:
    return [int(each.key.split("_q")[1].split("_")[0]) for each in found]


def test_the_heaviest_that_is_free_comes_first(held: SweepStudy) -> None:
    one, other = claims(held, "GPU 0"), claims(held, "GPU 1")
    found = [one.next(), other.next(), one.next()]
    assert lengths(*found) == [1024, 512, 256]
    assert one.next() is None and one.is_over is False, "other workers have slices in progress"
    assert max(one.values, key=lambda key: one.values[key]).split("_q")[1].startswith("1024")
    first = found[0]
    assert first is not None and one.item(first).key == first.key


def test_it_knows_whether_a_slice_is_the_first_of_its_workload(held: SweepStudy) -> None:
    own = claims(held, "GPU 0")
    first = own.next()
    assert first is not None and own.is_first(first)
    held.fail(first, "its worker was killed", counts=False)
    again = own.next()
    assert again is not None and again.key == first.key and not own.is_first(again)


def test_it_knows_which_workloads_wait_for_their_first_slice(held: SweepStudy) -> None:
    one, other = claims(held, "GPU 0"), claims(held, "GPU 1")
    first = one.next()
    assert first is not None
    assert lengths(*one.unclaimed(first)) == [512, 256], "the one that is worth the most first"
    second = other.next()
    assert second is not None and lengths(*other.unclaimed(second)) == [256]


def test_a_worker_that_starts_claims_again_where_another_one_was_first(
    held: SweepStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = claims(held, "GPU 0"), claims(held, "GPU 1")
    real = SweepStudy.claim

    def late(study: SweepStudy, key: str, amount: float, who: HostProcess) -> Slice | None:
        monkeypatch.setattr(SweepStudy, "claim", real)
        assert one.next() is not None  # between the other one's look and its claim
        return real(study, key, amount, who)

    monkeypatch.setattr(SweepStudy, "claim", late)
    assert lengths(other.first()) == [512]
    lost = [each for each in held.slices() if each.lost]
    assert len(lost) == 1 and not lost[0].counts
    monkeypatch.setattr(SweepStudy, "claim", lambda *_: None)
    assert other.first() is None and other.was_late


def test_slices_of_lost_workers_are_free_again(held: SweepStudy) -> None:
    own = claims(held, "GPU 0")
    own.watch.gone_s = 0.0
    gone = claims(held, "GPU 1")
    gone.who = replace(gone.who, started="0")
    assert gone.next() is not None
    assert lengths(own.next()) == [1024]
    assert "was lost" in held.slices()[0].lost


def test_slices_that_wait_use_the_seconds_first(held: SweepStudy) -> None:
    until = time.time() + 30.0
    own = claims(held, "GPU 0", Clock(30.0, None, until))
    waiting = own.next()
    assert waiting is not None and waiting.amount >= own.amounts.least
    long = replace(waiting, amount=28.0)
    assert own.next([long], [long]) is None and not own.is_over
    assert own.next([long], []) is not None, "it has the GPU already"
    own.clock = Clock(30.0, None, time.time() + 1.0)
    assert own.next() is None and own.is_over


def test_it_knows_what_each_workload_needs_for_a_record(tmp_path: Path) -> None:
    weights = {Workload.parse(text): 1.0 for text in ("q1024", "bwd_b8_q16384")}
    study = made(tmp_path, plan(weights=weights, targets=(), kernels=()))
    items = Items.of(study.plan, [Target.named("h200")])
    found = Claims(study, items, HostProcess.here(), Clock(90.0, None), SECONDS["measured"])
    short, long = (found.needs[each.key] for each in items.items)
    assert 2.0 < short < 6.0 < long < 90.0
    found.pace = 2.0
    assert found.needs[items.items[0].key] == pytest.approx(2 * short)
    assert found.needs[items.items[1].key] < 90.0
    assert not replace(found, clock=Clock(None, 60)).needs


@pytest.mark.parametrize(("seconds", "left_s"), [(30.0, 17.0), (100.0, 50.0), (6.0, 3.5)])
def test_what_needs_more_than_there_is_is_tried_all_the_same(
    seconds: float, left_s: float, tmp_path: Path
) -> None:
    """A start, or the sweep that is resumed, has used a part of the budget."""
    weights = {Workload.parse("bwd_b8_q16384"): 1.0}
    study = made(tmp_path, plan(weights=weights, targets=(), kernels=()))
    items = Items.of(study.plan, [Target.named("h200")])
    clock = Clock(seconds, None, time.time() + left_s)
    found = Claims(study, items, HostProcess.here(), clock, SECONDS["measured"])
    claimed = found.next()
    assert claimed is not None and 2.0 < claimed.amount <= left_s


def test_a_look_claims_nothing(held: SweepStudy) -> None:
    own = claims(held, "GPU 0")
    own.look()
    assert len(own.values) == 3 and all(own.values.values()) and not held.slices()


def test_what_is_worth_more_is_claimed_though_others_wait(held: SweepStudy) -> None:
    own = claims(held, "GPU 0", Clock(30.0, None, time.time() + 30.0))
    found = [own.next(), own.next()]
    assert lengths(*found) == [1024, 512] and found[0] is not None and found[1] is not None
    held.fail(found[0], "it is free again", counts=False)
    long = replace(found[1], amount=28.0)
    again = own.next([long], [long])
    assert lengths(again) == [1024]
    assert own.next([long], [long]) is None, "the last one is worth less than those that wait"
