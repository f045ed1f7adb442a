"""tunefa/compile/workers.py: processes that crash, hang and are orphaned, for real."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import TimeoutError
from pathlib import Path

import pytest

from tunefa.compile.workers import ProcessLost, Workers

LIMIT_S = 30.0


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(1)
    yield made
    made.stop()


def pid_of(workers: Workers) -> int:
    return workers.submit(os.getpid, (), LIMIT_S).result()


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends; a zombie has."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_a_crash_costs_one_task_and_the_next_has_a_new_process(workers: Workers) -> None:
    first = pid_of(workers)
    with pytest.raises(ProcessLost, match=f"^died with exit code {-signal.SIGSEGV}$"):
        workers.submit(ctypes.string_at, (0,), LIMIT_S).result()
    assert pid_of(workers) != first


def test_a_hang_ends_at_its_limit(workers: Workers) -> None:
    first = pid_of(workers)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        workers.submit(time.sleep, (60,), 1.0).result()
    assert time.monotonic() - start < 20
    assert gone(first) and pid_of(workers) != first


def test_renewed_workers_are_new_processes(workers: Workers) -> None:
    first = pid_of(workers)
    workers.renew()
    assert gone(first) and pid_of(workers) != first


ORPHANING = """
import os, sys, time
from tunefa.compile.workers import Workers
if __name__ == "__main__":
    workers = Workers(1)
    print(workers.submit(os.getpid, (), 30).result(), flush=True)
    workers.submit(time.sleep, (300,), 600)
    time.sleep(300)
"""


def test_killing_the_parent_leaves_no_process(tmp_path: Path) -> None:
    script = tmp_path / "orphaning.py"
    script.write_text(ORPHANING)
    tree = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert not gone(child, within_s=0.5)
    parent.kill()
    parent.wait()
    assert gone(child)
