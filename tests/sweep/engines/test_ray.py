"""tunefa/sweep/engines/ray.py: two nodes with fake GPUs on this machine.

It needs Ray, which `make test` does not install: `make test-cluster` does.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.sweeping import fake_work, made, plan
from tests.support.tree import TREE
from tunefa.errors import TunefaError
from tunefa.search.budget import Budget
from tunefa.sweep import engines, run
from tunefa.sweep.seat import Seat
from tunefa.sweep.study import SweepStudy

ray: Any = pytest.importorskip("ray", reason="needs Ray: make test-cluster")
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Two nodes with two fake GPUs each."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", f"{TREE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    there = Cluster()
    try:
        there.add_node(num_cpus=1, num_gpus=2)
        there.other = there.add_node(num_cpus=1, num_gpus=2)
        monkeypatch.setenv("RAY_ADDRESS", there.address)
        yield there
    finally:
        ray.shutdown()
        there.shutdown()


def predict(seat: Seat) -> str | None:
    """A worker with a fake GPU, which predicts with the fake objective."""
    assert seat.measured and os.environ["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    return fake_work(replace(seat, measured=False))  # a bench would load PyTorch


def test_one_worker_killed_and_one_node_removed(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = made(tmp_path, plan())
    engine: Any = engines.create("ray", predict)
    removed: list[str] = []

    def break_things() -> None:
        mine = SweepStudy.found(held.place, held.name)
        while not (there := [each for each in mine.slices() if each.is_running]):
            time.sleep(0.05)
        os.kill(there[0].worker.pid, signal.SIGKILL)
        while not any(each.found for each in mine.slices()):
            time.sleep(0.05)
        cluster.remove_node(cluster.other)
        removed.append("node")

    with engine:
        engine._needs = {"num_gpus": 1, "num_cpus": 0}  # as if it measured
        monkey = threading.Thread(target=break_things)
        monkey.start()
        engine.seats = lambda plan, place, study: [
            Seat(place, study, f"GPU {n} of Ray", measured=True) for n in range(1, 5)
        ]
        found = run.sweep(held, engine, Budget(trials=72))
        monkey.join()
    said = capsys.readouterr()
    assert said.out == "" and "died" in said.err, "stdout is for data"
    assert removed and all(each.is_begun for each in found.items)
    assert any("lost" in each.lost for each in found.slices)
    assert len({each.worker.pid for each in found.slices}) > 2


def test_the_seats_of_a_cluster(cluster: Any) -> None:
    with engines.create("ray") as engine:
        seats = engine.seats(plan(targets=()), "p", "s")
        assert [each.name for each in seats] == [f"GPU {n} of Ray" for n in range(1, 5)]
        (alone,) = engine.seats(plan(), "p", "s")  # two cores in all
        assert all(each.measured for each in seats) and not alone.measured


def raises(seat: Seat) -> str | None:
    raise TunefaError("the disk is full")


def test_the_end_of_a_worker(cluster: Any) -> None:
    with engines.create("ray", raises) as engine:
        seat = engine.seats(plan(targets=()), "p", "s")[0]
        engine.start(seat)
        ended: list[Any] = []
        while not ended:
            ended += engine.ended(1.0)
    assert "the disk is full" in ended[0].error and ended[0].is_users


def test_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(TunefaError, match=r"no Ray cluster can be reached.*ray start"):
        engines.create("ray").__enter__()
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(TunefaError, match=r"no Ray cluster can be reached.*ray start"):
        engines.create("ray").__enter__()
