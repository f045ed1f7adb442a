"""tunefa/sweep/run.py: a whole sweep in processes of this machine, with the fake objective."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.sample_records import measured
from tests.support.sweeping import WEIGHTS, fake_work, made, plan, swept
from tunefa.errors import TunefaError
from tunefa.search.budget import Budget
from tunefa.store import document
from tunefa.store import results as store
from tunefa.store.results import Store
from tunefa.sweep import engines, run, study
from tunefa.sweep.engine import Ended
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.plan import Plan
from tunefa.sweep.seat import Seat
from tunefa.sweep.study import SweepStudy


def test_two_workers_share_a_sweep(tmp_path: Path) -> None:
    held = made(tmp_path)
    found = swept(held, Budget(trials=48))
    assert all(each.is_begun for each in found.items) and len(found.items) == len(WEIGHTS)
    assert {each.worker.seat for each in found.slices} == {"worker 1", "worker 2"}
    assert not any(each.is_running for each in found.slices) and not found.errors
    assert found.course[-1][1] == found.saved > 0
    records = Store([store.user_root()]).records()
    assert len({record.workload for record in records}) == len(WEIGHTS)
    assert held.notes["coordinator"] is None


def test_a_budget_of_seconds_ends_it_and_goes_on(tmp_path: Path) -> None:
    held = made(tmp_path)
    begun = time.monotonic()
    found = swept(held, Budget(seconds=14.0))
    assert time.monotonic() - begun < 14.0 + run.GRACE_S
    spent_s = found.spent
    assert spent_s == pytest.approx(time.monotonic() - begun, abs=3.0)
    assert all(each.is_begun for each in found.items)
    again = swept(held, Budget(seconds=14.0))  # nothing more is expected, or too little is left
    assert len(again.slices) == len(found.slices) and again.spent >= spent_s


class Broken:
    """An engine whose workers end as they are told to."""

    def __init__(self, *ends: Ended) -> None:
        self.ends, self.started = list(ends), 0

    def __enter__(self) -> Broken:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        pass

    def seats(self, plan: Plan, place: str, study: str) -> list[Seat]:
        return [Seat(place, study, "GPU 0")]

    def start(self, seat: Seat) -> None:
        self.started += 1

    def ended(self, wait_s: float) -> list[Ended]:
        return [self.ends.pop(0)] if self.ends else []


def test_a_lost_worker_gets_a_successor_until_it_is_hopeless(tmp_path: Path) -> None:
    held = made(tmp_path)
    seat = Seat(held.place, held.name, "GPU 0")
    engine = Broken(*[Ended(seat, "its process died")] * run.MOST_STARTS)
    with pytest.raises(TunefaError, match="GPU 0 ended: its process died"):
        run.sweep(held, engine, Budget(trials=10))
    assert engine.started == run.MOST_STARTS
    mistaken = Broken(Ended(seat, "the disk is full", is_users=True))
    with pytest.raises(TunefaError, match="GPU 0 ended: the disk is full"):
        run.sweep(held, mistaken, Budget(trials=10))
    assert mistaken.started == 1


def test_a_worker_that_is_killed_loses_its_slice_only(tmp_path: Path) -> None:
    held = made(tmp_path)

    def kill() -> None:
        mine = SweepStudy.found(held.place, held.name)
        while not (there := [each for each in mine.slices() if each.is_running]):
            time.sleep(0.02)
        os.kill(there[0].worker.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    found = swept(held, Budget(trials=48))
    killer.join()
    assert all(each.is_begun for each in found.items)
    assert sum("was lost" in each.lost for each in found.slices) == 1
    assert any("-9" in why for why in found.errors.values())


def test_two_sweeps_on_one_store(tmp_path: Path) -> None:
    held = made(tmp_path)
    study.folder().mkdir(parents=True)
    with open(study.folder() / ".running", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TunefaError, match=r"another sweep writes to this store.*--join"):
            run.sweep(held, Broken(), Budget(trials=10))


def test_two_processes_that_run_one_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = made(tmp_path)
    other = HostProcess.here().to_data()
    held.note("coordinator", other)
    with pytest.raises(TunefaError, match=f"the process {os.getpid()} on .* runs this sweep"):
        run.sweep(held, Broken(), Budget(trials=10))
    held.note("coordinator", {**other, "started": "0"})  # it was killed
    done = Ended(Seat(held.place, held.name, "GPU 0"))
    run.sweep(held, Broken(done), Budget(trials=10))
    monkeypatch.setattr(run, "LOST_S", 0.3)
    held.note("coordinator", {**other, "host": "elsewhere"})
    run.sweep(held, Broken(done), Budget(trials=10))  # it is silent


def test_ctrl_c_ends_it_and_says_so(tmp_path: Path) -> None:
    held = made(tmp_path)

    class Stops(Broken):
        def ended(self, wait_s: float) -> list[Ended]:
            raise KeyboardInterrupt

    gone = replace(HostProcess.here("GPU 0"), started="0")
    assert held.claim("sm90/x/y", 5.0, gone) is not None
    found = run.sweep(held, Stops(), Budget(trials=10))
    assert found.interrupted and not any(each.is_running for each in held.slices())


def test_records_of_other_hosts_are_kept_here(tmp_path: Path) -> None:
    held = made(tmp_path)
    record = measured()
    claimed = held.claim("sm90/x/y", 5.0, replace(HostProcess.here("GPU 0"), host="elsewhere"))
    assert claimed is not None
    held.complete(claimed, {"best_us": 3.0, "record": document.to_text([record])})
    done = Ended(Seat(held.place, held.name, "GPU 0"))
    run.sweep(held, Broken(done), Budget(trials=10))
    assert Store([store.user_root()]).records() == [record]


def test_workers_join_a_sweep_that_runs(tmp_path: Path) -> None:
    held = made(tmp_path, plan())
    joined: list[Any] = []

    def join() -> None:
        there = SweepStudy.found(held.place, held.name)
        while "budget" not in there.notes:
            time.sleep(0.02)
        joined.append(run.join(there, engines.create("local", fake_work, workers=2)))

    other = threading.Thread(target=join)
    other.start()
    found = swept(held, Budget(trials=60), workers=2)
    other.join()
    assert len({each.worker.pid for each in found.slices if each.found}) == 2
    assert all(each.is_begun for each in joined[0].items)
