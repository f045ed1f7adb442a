"""tunefa/sweep/worker.py: slices that prepare while another one has the GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import slow_compilers, slow_compiling
from tests.support.sweeping import made
from tunefa.search.budget import Budget
from tunefa.spec.kernel import load
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload
from tunefa.store import journal
from tunefa.sweep import clock as clocks
from tunefa.sweep import gpu_time, start, worker
from tunefa.sweep.clock import Clock
from tunefa.sweep.seat import Seat
from tunefa.sweep.study import SweepStudy


@pytest.fixture(autouse=True)
def compilers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = sys.getswitchinterval()
    slow_compilers.install(monkeypatch.setattr)
    yield
    sys.setswitchinterval(before)


def worked(place: Path, seconds: float, **changes: Any) -> SweepStudy:
    """The study of a sweep, after a worker's work."""
    place.mkdir()
    held = made(place, slow_compilers.plan(**changes))
    held.note(clocks.NOTE, Clock.started(Budget(seconds=seconds), 0.0).to_data())
    there = Seat(held.place, held.name, "GPU 0", slow_compilers.share(), measured=True)
    assert start.work(there) is None
    return held


def swept(place: Path, seconds: float) -> tuple[float, int]:
    """The seconds in which the GPU was busy, and how many workloads have a record."""
    held = worked(place, seconds)
    records = {each.key for each in held.slices() if each.found and each.found["best_us"]}
    return gpu_time.of(held.notes)["GPU 0"].busy_s, len(records)


def test_the_gpu_works_while_others_compile(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy_s, records = swept(tmp_path / "several", 24.0)
    compiled = slow_compilers.compilations(home)
    # A slice may ask for a config that a compiler still has of the slice before.
    assert len(compiled) <= 1.05 * len(set(compiled)), "more was compiled twice"
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(worker, "MOST_SLICES", 1)
    alone_s, alone = swept(tmp_path / "alone", 24.0)
    assert busy_s > 1.5 * alone_s and records > alone


def test_the_gpu_tries_what_is_compiled_before_a_slow_default(tmp_path: Path, home: Path) -> None:
    weights = {Workload.parse("q1024_h8_kv2_d128"): 1.0}
    kernels = (slow_compiling.QUICK, slow_compiling.LATE)
    held = worked(tmp_path / "one", 30.0, weights=weights, kernels=kernels)
    found = [each.found for each in held.slices() if each.found]
    assert found and found[0]["best_us"]
    tried = [(kernel, trial.config) for kernel, trial in journal.read(Path(found[0]["journal"]))]
    case = Case(load(slow_compiling.LATE), next(iter(weights)), worker.targets(held.plan)[0])
    before = tried[: tried.index((case.kernel.name, case.default()))]
    assert len(before) > 3, "configs of the quick kernel, while the default compiled"
