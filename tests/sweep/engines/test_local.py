"""tunefa/sweep/engines/local.py: processes of this machine."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.sweeping import plan
from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice
from tunefa.errors import TunefaError
from tunefa.sweep import cores, start, store_lock
from tunefa.sweep.engine import Ended
from tunefa.sweep.engines import local
from tunefa.sweep.engines.local import Engine
from tunefa.sweep.seat import Seat

H200, A100 = (
    SeenDevice("NVIDIA H200", (9, 0), 132, 2**37),
    SeenDevice("NVIDIA A100-SXM4-80GB", (8, 0), 108, 2**36),
)
MEASURED = plan(targets=())


def says(seat: Seat) -> str | None:
    return f"{seat.name} {os.environ.get('CUDA_VISIBLE_DEVICES')} {sorted(cores.available())}"


def raises(seat: Seat) -> str | None:
    raise TunefaError("the disk is full")


def fails(seat: Seat) -> str | None:
    raise ZeroDivisionError("a bug")


def dies(seat: Seat) -> str | None:
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def sleeps(seat: Seat) -> str | None:
    time.sleep(60)
    return None


def ends(task: Any, *seats: Seat) -> list[Ended]:
    with Engine(task) as engine:
        for seat in seats:
            engine.start(seat)
        found: list[Ended] = []
        until = time.monotonic() + 30
        while len(found) < len(seats):
            assert time.monotonic() < until
            found += engine.ended(1.0)
        return found


SEAT = Seat("place", "study", "GPU 3", environment={"CUDA_VISIBLE_DEVICES": "3"})


def test_a_worker_has_its_own_variables(capfd: pytest.CaptureFixture[str]) -> None:
    (ended,) = ends(says, SEAT)
    assert ended == Ended(SEAT)


@pytest.mark.parametrize(
    ("task", "error", "is_users"),
    [
        (raises, "the disk is full", True),
        (fails, "ZeroDivisionError: a bug", False),
        (dies, "its process died with exit code -9", False),
    ],
)
def test_how_a_worker_ended(task: Any, error: str, is_users: bool) -> None:
    (ended,) = ends(task, SEAT)
    assert ended.error is not None and error in ended.error and ended.is_users is is_users


def test_stopping_ends_all() -> None:
    begun = time.monotonic()
    with Engine(sleeps) as engine:
        engine.start(SEAT)
        assert engine.ended(0.5) == []
    assert time.monotonic() - begun < 20
    assert engine.ended(0.1) == []


def begins(seat: Seat) -> None:
    """In place of `start.begin`."""
    os.environ["BEGUN"] = seat.name


def says_what_was_begun(seat: Seat) -> str | None:
    if os.environ.get("BEGUN") != seat.name or seat.study != "study":
        raise TunefaError(f"{os.environ.get('BEGUN')} was begun")
    return None


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "devices", lambda: [H200, H200])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(start, "begin", begins)


def test_a_process_that_was_begun_gets_the_work_of_its_seat(two_gpus: None) -> None:
    with Engine(says_what_was_begun) as engine:
        engine.begin(MEASURED)
        seats = engine.seats(MEASURED, "place", "study")
        for seat in seats:
            engine.start(seat)
        found: list[Ended] = []
        until = time.monotonic() + 30
        while len(found) < 2 and time.monotonic() < until:
            found += engine.ended(1.0)
        assert {each.seat.name for each in found} == {"GPU 0", "GPU 1"}
        assert [each.error for each in found] == [None, None]
        engine.start(seats[0])  # its successor has a new process
        while not (again := engine.ended(1.0)):
            assert time.monotonic() < until
        assert again[0].error == "None was begun"


def test_processes_without_work_end_with_the_engine(two_gpus: None) -> None:
    with Engine(says) as engine:
        engine.begin(MEASURED)
        held = list(engine._begun.values())
        assert len(held) == 2
    for each in held:
        with pytest.raises(RuntimeError, match="stopped"):
            each.submit(max, (1, 2), 1.0)


def test_nothing_is_begun_for_predictions_or_beside_another_sweep(
    two_gpus: None, home: Path
) -> None:
    with Engine(says) as engine:
        engine.begin(plan())
        assert not engine._begun
        store_lock.path().parent.mkdir(parents=True)
        with open(store_lock.path(), "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            engine.begin(MEASURED)
        assert not engine._begun


@pytest.mark.parametrize(
    ("given", "visible"),
    [(None, ["0", "1"]), ("4,7", ["4", "7"]), ("GPU-a, GPU-b", ["GPU-a", "GPU-b"])],
)
def test_a_seat_for_each_gpu(
    given: str | None, visible: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "devices", lambda: [H200, A100])
    monkeypatch.setattr(cores, "available", lambda: list(range(16)))
    if given is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    seats = Engine(says).seats(MEASURED, "p", "s")
    assert [each.environment for each in seats] == [{"CUDA_VISIBLE_DEVICES": v} for v in visible]
    assert [each.name for each in seats] == [f"GPU {v}" for v in visible]
    assert [len(each.share.own) for each in seats] == [2, 2]
    named = plan(targets=(), device="NVIDIA H200")
    assert [each.name for each in Engine(says).seats(named, "p", "s")] == [f"GPU {visible[0]}"]


def test_no_gpu_and_none_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "devices", lambda: [])
    with pytest.raises(TunefaError, match=r"this machine has no GPU to measure on.*--arch"):
        local.gpus(MEASURED)
    monkeypatch.setattr(driver, "devices", lambda: [H200, H200])
    with pytest.raises(TunefaError, match="no GPU of this machine is a NVIDIA B200; there are: "
                       "NVIDIA H200, NVIDIA H200: name one"):  # fmt: skip
        local.gpus(plan(targets=(), device="NVIDIA B200"))


def test_predictions_have_a_worker_for_every_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available", lambda: list(range(5)))
    assert [each.share.processes for each in Engine(says).seats(plan(), "p", "s")] == [3, 2]
    assert len(Engine(says, 1).seats(plan(), "p", "s")) == 1
    monkeypatch.setattr(cores, "available", lambda: list(range(64)))
    assert len(Engine(says).seats(plan(), "p", "s")) == 3  # no more than items
