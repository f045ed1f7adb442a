"""tunefa/sweep/start.py: processes are started before a worker loads modules of its own."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.processes import environment
from tunefa.measure import loading
from tunefa.sweep import start, worker
from tunefa.sweep.processes import Started
from tunefa.sweep.seat import Seat

SLOW = ("torch", "scipy", "optuna", "numpy", "triton", "tunefa.compile.pool", "tunefa.sweep.worker")


def test_a_process_that_starts_loads_nothing_that_takes_long(tmp_path: Path) -> None:
    code = f"import sys, tunefa.sweep.start; print([m for m in {SLOW!r} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == "[]"


@pytest.mark.parametrize("measured", [True, False])
def test_a_worker_has_the_processes_that_were_started(
    monkeypatch: pytest.MonkeyPatch, measured: bool
) -> None:
    monkeypatch.setattr(loading, "warm_up", lambda bench, *modules: None)
    given: list[Started | None] = []

    def work(seat: Seat, started: Started | None) -> str:
        given.append(started)
        return "put aside"

    monkeypatch.setattr(worker, "work", work)
    assert start.work(Seat("", "", "GPU 0", measured=measured)) == "put aside"
    assert (given[0] is not None) == measured
    if given[0] is not None:
        with pytest.raises(RuntimeError, match="stopped"):
            given[0].bench.submit(max, (1, 2), 1.0)


def test_work_has_the_processes_that_were_begun_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "warm_up", lambda bench, *modules: None)
    given: list[Started | None] = []
    monkeypatch.setattr(worker, "work", lambda seat, started: given.append(started))
    begun = Seat("", "", "GPU 0", measured=True)
    start.begin(begun)
    ((_, early),) = start._begun.values()
    start.work(replace(begun, study="study"))
    start.work(begun)
    assert early is not None and given[0] is early and given[1] is not early
    assert not start._begun
    with pytest.raises(RuntimeError, match="stopped"):
        early.bench.submit(max, (1, 2), 1.0)
