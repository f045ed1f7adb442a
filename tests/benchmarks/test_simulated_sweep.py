"""benchmarks/simulated_sweep: a sweep ends in time, with a record of each workload.

Its clock is virtual, so a busy machine changes nothing. It is that of a whole process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from benchmarks.simulated_sweep.host import Log
from tests.support.tree import TREE

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it needs /proc")
ARGUMENTS = (
    *("--budget", "70", "--batch", "8", "--seqlen", "1k,16k", "--ops", "bwd,decode"),
    *("--kernel", "attention_bwd_cuda_sm90", "--kernel", "attention_bwd_triton"),
    *("--kernel", "attention_decode_triton", "--json"),
)
CLOCK = """
import threading, time
from benchmarks.simulated_sweep.virtual_time import VirtualTime

clock = VirtualTime()
clock.install()
found, asked = [], threading.Event()

def sleeper(seconds):
    time.sleep(seconds)
    sum(range(3_000_000))  # computing takes no time
    found.append((seconds, time.monotonic()))

threads = [threading.Thread(target=sleeper, args=(s,)) for s in (900.0, 100.0, 500.0)]
for each in threads:
    each.start()
found.append((asked.wait(300.0), time.monotonic()))
clock.call_at(600.0, asked.set)
found.append((asked.wait(1e6), time.monotonic()))
for each in threads:
    each.join()
expected = [(100.0, 100.0), (False, 300.0), (500.0, 500.0), (True, 600.0), (900.0, 900.0)]
assert found == expected, found
"""


def ran(*arguments: str) -> str:
    """Returns the output of a process of Python."""
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=TREE, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_waiting_takes_virtual_time_and_computing_none() -> None:
    ran("-c", CLOCK)


def test_races_end_with_the_budget_and_no_record_is_missing() -> None:
    """A race of a gradient of 71 ms takes 20 s: begun when the budget is nearly over, it would end
    10 s after it, or be cut short then."""
    found = json.loads(ran("-m", "benchmarks.simulated_sweep", *ARGUMENTS))
    assert found["workloads"] == found["records"] == 3, found["missing"]
    assert found["wall_s"] < found["budget_s"] + 3.0
    ended = [gpu["ended_s"] for gpu in found["gpus"].values()]
    assert len(ended) == 2 and None not in ended
    assert all(0.0 < gpu["busy_share"] < 1.0 for gpu in found["gpus"].values())


def test_what_is_loaded_is_no_work_of_a_gpu() -> None:
    log = Log([("load_device", 0.0, 5.0), ("run_in_process", 6.0, 8.0)])
    assert log.busy_s(0.0, 10.0) == 2.0
    assert log.busy_s(7.0, 10.0) == 1.0
