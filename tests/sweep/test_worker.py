"""tunefa/sweep/worker.py: one worker, in this process, with the fake objective."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.fake_objective import Fake, by_tile
from tests.support.sweeping import KERNEL, WEIGHTS, begun_defaults, few, made, plan
from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice
from tunefa.compile.workers import Workers
from tunefa.errors import TunefaError
from tunefa.search import preparation
from tunefa.search import run as searching
from tunefa.search.budget import Budget
from tunefa.search.model_process import ModelProcess
from tunefa.search.request import Processes
from tunefa.spec.space import Space
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload
from tunefa.store import journal
from tunefa.store import results as store
from tunefa.store.results import Store
from tunefa.sweep import claims, health, item_state, worker
from tunefa.sweep import clock as clocks
from tunefa.sweep.clock import Clock
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.processes import Started
from tunefa.sweep.requests import Items
from tunefa.sweep.seat import ASIDE, REFUSED, Seat
from tunefa.sweep.slices import Slice
from tunefa.sweep.study import SweepStudy


@pytest.fixture(autouse=True)
def small_spaces(remembered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Space, "feasible", few)


def begun(tmp_path: Path, trials: int = 60, **asked: Any) -> SweepStudy:
    held = made(tmp_path, plan(**asked))
    held.note(clocks.NOTE, Clock.started(Budget(trials=trials), 0.0).to_data())
    return held


def seat(held: SweepStudy) -> Seat:
    return Seat(held.place, held.name, "worker 1")


def completed(held: SweepStudy) -> list[Slice]:
    return [each for each in held.slices() if each.found is not None]


def test_it_works_until_the_budget_is_used(tmp_path: Path, fake: type[Fake]) -> None:
    fake.judge = staticmethod(by_tile)
    held = begun(tmp_path)
    assert worker.work(seat(held)) is None
    slices = completed(held)
    used = sum(each.found["used"] for each in slices if each.found)
    assert 60 - 4 < used <= 60 and len(slices) > len(WEIGHTS)
    assert {each.worker.pid for each in slices} == {HostProcess.here().pid}
    records = Store([store.user_root()]).records()
    assert len({record.workload for record in records}) == len(WEIGHTS)
    assert all(record.provenance["sweep"] == held.name for record in records)
    journals = {each.found["journal"] for each in slices if each.found}
    assert len(journals) == len(WEIGHTS)
    for path in journals:
        assert journal.header(Path(path))["sweep"] == held.name


def test_the_heaviest_comes_first(tmp_path: Path, fake: type[Fake]) -> None:
    fake.judge = staticmethod(by_tile)
    held = begun(tmp_path)
    worker.work(seat(held))
    first = dict.fromkeys(each.key.split("/")[2] for each in completed(held))
    assert list(first) == [str(Workload.parse(text)) for text in WEIGHTS]


def test_a_lost_worker_leaves_its_workload_to_others(
    tmp_path: Path, fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "GONE_S", 0.0)  # the sweep may end within a second
    fake.judge = staticmethod(by_tile)
    held = begun(tmp_path)
    key = Items.of(held.plan, worker.targets(held.plan)).items[0].key
    gone = replace(HostProcess.here("worker 2"), started="0")
    assert held.claim(key, 16.0, gone) is not None
    worker.work(seat(held))
    first = held.slices()[0]
    assert not first.is_running and "worker 2, was lost" in first.lost
    assert any(each.key == key for each in completed(held))


def test_a_workload_that_fails_is_given_up_and_the_rest_is_done(
    tmp_path: Path, fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.judge = staticmethod(by_tile)
    held = begun(tmp_path)
    real, bad = searching.search, Workload.parse("q1024_h8_kv2_d64")

    def search(asked: Any, *rest: Any) -> Any:
        if asked.workload == bad:
            raise TunefaError("no")
        return real(asked, *rest)

    monkeypatch.setattr(searching, "search", search)
    assert worker.work(seat(held)) is None
    failed = [each for each in held.slices() if each.lost == "no"]
    assert len(failed) == item_state.MOST_FAILURES
    assert len({each.key for each in completed(held)}) == 2


def test_where_nothing_can_be_written_it_ends(
    tmp_path: Path, fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full: the real write of the journal fails."""
    held = begun(tmp_path)
    real = os.fsync

    def full(descriptor: int) -> None:
        if ".jsonl" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TunefaError, match=r"cannot be written: No space left.*free space"):
        worker.work(seat(held))
    assert not any(each.is_running for each in held.slices())
    monkeypatch.undo()


def test_a_gpu_that_is_put_aside_leaves_its_work(
    tmp_path: Path, fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.judge = staticmethod(by_tile)
    held = begun(tmp_path)
    monkeypatch.setattr(health, "why_aside", lambda result, bench: "it throttles")
    real = searching.search

    def alone(asked: Any, known: Any, listen: Any, shared: Any) -> Any:
        return real(asked, known, listen)

    monkeypatch.setattr(searching, "search", alone)
    assert worker.work(seat(held), Started(Workers(1), Workers(1))) == "it throttles"
    (only,) = held.slices()
    assert "worker 1 is put aside" in only.lost and not only.counts and not only.is_running
    notes = {n: why for n, why in held.notes.items() if n.startswith(ASIDE)}
    assert list(notes.values()) == ["it throttles"] and "worker 1" in next(iter(notes))


def test_what_no_kernel_serves_is_noted(tmp_path: Path, fake: type[Fake]) -> None:
    fake.judge = staticmethod(by_tile)
    weights = {Workload.parse("q512_h8_kv2_d64"): 1.0, Workload.parse("bwd_q512_d64"): 1.0}
    held = begun(tmp_path, 16, weights=weights, kernels=(KERNEL,))
    worker.work(seat(held))
    refused = [n for n in held.notes if n.startswith(REFUSED)]
    assert len(refused) == 1 and "bwd_" in refused[0]


def test_a_gpu_of_the_right_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "devices", lambda: [])
    with pytest.raises(TunefaError, match="this worker sees no GPU"):
        worker.targets(plan(targets=()))
    seen = SeenDevice("NVIDIA H200", (9, 0), 132, 2**37)
    monkeypatch.setattr(driver, "devices", lambda: [seen])
    (there,) = worker.targets(plan(targets=()))
    assert there.device.name == "NVIDIA H200"
    with pytest.raises(TunefaError, match="this worker's GPU is NVIDIA H200, not NVIDIA A100"):
        worker.targets(plan(targets=(), device="NVIDIA A100"))


def test_what_it_measures_is_kept_for_the_gpu_that_it_sees(
    tmp_path: Path, fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objective is fake, as there is no GPU; all else is that of a measured sweep."""
    fake.judge = staticmethod(by_tile)
    monkeypatch.setattr(searching, "_objective", lambda state, case: fake(case))
    monkeypatch.setattr(driver, "devices", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 2**37)])
    held = begun(tmp_path, 24, targets=())
    assert worker.work(seat(held)) is None
    slices = completed(held)
    assert slices and all(each.key.startswith("sm90/NVIDIA H200/") for each in slices)
    records = Store([store.user_root()]).records()
    assert {(each.device, each.objective, each.mode) for each in records} == {
        ("NVIDIA H200", "measured", "eager")
    }
    begun_again = {each.found["journal"] for each in slices if each.found}
    assert len(begun_again) == len({each.key for each in slices})


class Model:
    """Remembers the lengths of the workloads that it begins with."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def begin(self, cases: list[Case]) -> None:
        self.begun += [case.workload.seqlen_q for case in cases]


def starting(held: SweepStudy, name: str) -> worker._Worker:
    """A worker that has a model, and compilers which compile nothing."""
    shared = Processes(Workers(1), Workers(1), cast(ModelProcess, Model()))
    items = Items.of(held.plan, worker.targets(held.plan))
    return worker._Worker(held, held.plan, items, seat(held), HostProcess.here(name), shared)


def test_workers_that_start_together_claim_and_begin_with_other_workloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = begun_defaults(monkeypatch)
    held = begun(tmp_path)
    one, other = starting(held, "GPU 0"), starting(held, "GPU 1")
    with one.prepared(), other.prepared():
        assert compiled == [1024, 512]
        assert [each.shared.model.begun for each in (one, other)] == [[1024], [512]]  # type: ignore
        assert one.first is not None and one.first.is_running
        assert len(held.slices()) == 2


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (TunefaError("another driver"), "another driver"),
        (RuntimeError("no library"), "no library"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_a_worker_that_cannot_begin_gives_its_first_workload_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, why: str
) -> None:
    monkeypatch.setattr(preparation, "begin_defaults", lambda cases, compilers: None)
    held = begun(tmp_path)
    with pytest.raises(type(error)), starting(held, "GPU 0").prepared():
        raise error
    (only,) = held.slices()
    assert only.lost == why and not only.counts and not only.is_running


def test_a_worker_that_ends_before_its_first_slice_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "begin_defaults", lambda cases, compilers: None)
    held = begun(tmp_path)
    one = starting(held, "GPU 0")
    with one.prepared():
        pass
    monkeypatch.setattr(one, "_begins_more", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        one.run()
    (only,) = held.slices()
    assert only.lost == "its worker has ended" and not only.counts and not only.is_running
