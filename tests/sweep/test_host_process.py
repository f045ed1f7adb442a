"""tunefa/sweep/host_process.py: processes, and whether they are still there."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tunefa.sweep import host_process
from tunefa.sweep.host_process import HostProcess


def test_this_process_is_here_and_has_not_ended() -> None:
    own = HostProcess.here("GPU 0")
    assert own.is_here and not own.has_ended and own.seat == "GPU 0"
    assert HostProcess.from_data(json.loads(json.dumps(own.to_data()))) == own


def test_a_number_that_is_used_again_is_another_process() -> None:
    assert replace(HostProcess.here(), started="1").has_ended


def test_a_process_that_nobody_has_waited_for_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    there = replace(
        HostProcess.here(), pid=process.pid, started=host_process._started(process.pid) or ""
    )
    assert not there.has_ended
    process.kill()
    process.communicate()
    assert there.has_ended


def test_nobody_knows_whether_a_process_of_another_host_has_ended() -> None:
    other = replace(HostProcess.here(), host="elsewhere", started="1")
    assert not other.is_here and not other.has_ended


@pytest.mark.parametrize("data", [{}, {"pid": "x"}, {"host": 3}])
def test_what_is_no_process_is_nowhere(data: dict[str, object]) -> None:
    assert not HostProcess.from_data(data).is_here
