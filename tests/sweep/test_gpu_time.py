"""tunefa/sweep/gpu_time.py: what a GPU did, from the notes of all its processes."""

from __future__ import annotations

import pytest

from tunefa.compile.pool import WAITING
from tunefa.compile.workers import Workers
from tunefa.search.request import Processes
from tunefa.sweep import gpu_time


def test_what_is_not_timed_does_not_count() -> None:
    shared = Processes(Workers(1), Workers(1))
    shared.bench.ran_s |= {"_warm_up": 5.0, "run_in_process": 3.0}
    shared.compilers.ran_s[WAITING] = 2.0
    found = gpu_time.measured(shared, None)
    assert (found.busy_s, found.waited_s) == (3.0, 2.0)


def test_the_processes_of_a_gpu_are_added_up() -> None:
    said = {"seat": "GPU 0", "host": "a", "busy_s": 3.0, "waited_s": 1.0}
    notes = {f"{gpu_time.NOTE}{pid}": said for pid in (1, 2)}
    assert gpu_time.of({**notes, "other": 1}) == {"GPU 0": gpu_time.GpuTime(6.0, 2.0)}
    notes[f"{gpu_time.NOTE}3"] = {**said, "host": "b"}
    assert gpu_time.of(notes)["GPU 0 of b"].busy_s == pytest.approx(3.0)
