"""tunefa/sweep/engines/slurm.py: jobs of submitit's local executor. Needs submitit, which
`make test` does not install: `make test-cluster` does."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.sweeping import fake_work, made, plan
from tests.support.tree import TREE
from tunefa.errors import TunefaError
from tunefa.search.budget import Budget
from tunefa.sweep import engines, run
from tunefa.sweep.engine import Ended
from tunefa.sweep.seat import Seat

pytest.importorskip("submitit", reason="needs submitit: make test-cluster")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{TREE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")


def raises(seat: Seat) -> str | None:
    raise TunefaError("the disk is full")


def dies(seat: Seat) -> str | None:
    os.kill(os.getpid(), signal.SIGKILL)
    return None


def ends(task: Any) -> Ended:
    with engines.create("slurm", task) as engine:
        (seat,) = engine.seats(plan(), "p", "s")
        engine.start(seat)
        found: list[Ended] = []
        while not found:
            found += engine.ended(1.0)
    return found[0]


def test_a_sweep_by_two_jobs(tmp_path: Path) -> None:
    held = made(tmp_path)
    found = run.sweep(held, engines.create("slurm", fake_work, hosts=2), Budget(trials=48))
    assert all(each.is_begun for each in found.items)
    assert {each.worker.seat for each in found.slices} == {"job 1", "job 2"}


def test_how_a_job_ended() -> None:
    ended = ends(raises)
    assert ended.error == "the disk is full" and ended.is_users
    lost = ends(dies)
    assert lost.error is not None and not lost.is_users


def test_options_of_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines.create("slurm", hosts=3)
    monkeypatch.setenv("TUNEFA_SLURM", "partition=gpu,cpus_per_task=16")
    names = [each.name for each in engine.seats(plan(), "p", "s")]
    assert names == ["job 1", "job 2", "job 3"]
    monkeypatch.setenv("TUNEFA_SLURM", "partition")
    with pytest.raises(TunefaError, match="has no value for 'partition'"):
        engine.seats(plan(), "p", "s")
    monkeypatch.setenv("TUNEFA_SLURM", "nonsense=3")
    with pytest.raises(TunefaError, match="submitit refuses an option"):
        engine.seats(plan(), "p", "s")
