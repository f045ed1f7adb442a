"""tunefa/sweep/worker.py: slices that prepare while another one has the GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import slow_compilers
from tests.support.sweeping import made
from tunefa.search.budget import Budget
from tunefa.sweep import clock as clocks
from tunefa.sweep import gpu_time, worker
from tunefa.sweep.clock import Clock
from tunefa.sweep.worker import Seat


@pytest.fixture(autouse=True)
def compilers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = sys.getswitchinterval()
    slow_compilers.install(monkeypatch.setattr)
    yield
    sys.setswitchinterval(before)


def swept(place: Path, seconds: float) -> tuple[float, int]:
    """The seconds in which the GPU was busy, and how many workloads have a record."""
    place.mkdir()
    held = made(place, slow_compilers.plan())
    held.note(clocks.NOTE, Clock.started(Budget(seconds=seconds), 0.0).to_data())
    assert worker.work(Seat(held.place, held.name, "GPU 0", slow_compilers.share())) is None
    records = {each.key for each in held.slices() if each.found and each.found["best_us"]}
    return gpu_time.of(held.notes)["GPU 0"].busy_s, len(records)


def test_the_gpu_works_while_others_compile(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_s, records = swept(tmp_path / "several", 14.0)
    compiled = slow_compilers.compilations(home)
    assert len(compiled) == len(set(compiled)), "something was compiled twice"
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(worker, "MOST_SLICES", 1)
    alone_s, alone = swept(tmp_path / "alone", 14.0)
    assert busy_s > 1.5 * alone_s and records > alone
