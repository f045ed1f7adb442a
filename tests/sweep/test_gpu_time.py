"""tunefa/sweep/gpu_time.py: what a GPU did, from the notes of all its processes."""

from __future__ import annotations

import time
from dataclasses import asdict

import pytest

from tunefa.compile.pool import WAITING
from tunefa.compile.workers import Workers
from tunefa.search.gpu_turns import Turns
from tunefa.search.request import Processes
from tunefa.sweep import gpu_time


def test_what_is_not_timed_does_not_count() -> None:
    shared = Processes(Workers(1), Workers(1))
    shared.bench.ran_s |= {"load_device": 5.0, "run_in_process": 3.0}
    shared.compilers.ran_s[WAITING] = 2.0
    found = gpu_time.measured(12.0, shared, None)
    assert found == gpu_time.GpuTime(12.0, 3.0, 0.0, 2.0, 5.0)
    assert found.busy_share == 0.25 and gpu_time.GpuTime().busy_share is None


def test_notes_of_an_older_sweep_are_read() -> None:
    said = {"seat": "GPU 0", "host": "a", "busy_s": 3.0, "waited_s": 2.0}
    assert gpu_time.of({f"{gpu_time.NOTE}1": said}) == {"GPU 0": gpu_time.GpuTime(busy_s=3.0)}


def test_the_gpu_is_free_while_no_search_has_it() -> None:
    gpu_turns = Turns()
    time.sleep(0.05)
    with gpu_turns.new("a", 1.0).taken():
        found = gpu_time.measured(1.0, Processes(Workers(1), Workers(1)), gpu_turns)
        time.sleep(0.05)
        assert gpu_time.measured(1.0, Processes(Workers(1), Workers(1)), gpu_turns) == found
    assert found.free_s >= 0.05


def test_the_processes_of_a_gpu_are_added_up() -> None:
    said = {"seat": "GPU 0", "host": "a", **asdict(gpu_time.GpuTime(9.0, 3.0, 1.0, 0.5, 0.25))}
    notes = {f"{gpu_time.NOTE}{pid}": said for pid in (1, 2)}
    assert gpu_time.of({**notes, "other": 1}) == {
        "GPU 0": gpu_time.GpuTime(18.0, 6.0, 2.0, 1.0, 0.5)
    }
    notes[f"{gpu_time.NOTE}3"] = {**said, "host": "b"}
    assert gpu_time.of(notes)["GPU 0 of b"].busy_s == pytest.approx(3.0)
