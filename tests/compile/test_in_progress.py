"""tunefa/compile/in_progress.py: one process compiles a binary, and others know it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import environment
from tunefa import assets
from tunefa.compile import in_progress

_HOLDER = """
import sys, time
from tunefa.compile import in_progress
with in_progress.claimed(sys.argv[1]) as is_free:
    print(is_free, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    return tmp_path


def holder(home: Path, name: str) -> tuple[subprocess.Popen[str], bool]:
    """A process that claims a name, and whether it has it."""
    started = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, name],
        env=environment(home),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    return started, started.stdout.readline() == "True\n"


def test_a_name_is_free_again_when_its_process_is_killed(home: Path) -> None:
    one, is_free = holder(home, "a")
    assert is_free
    for name, expected in (("a", False), ("b", True)):
        with in_progress.claimed(name) as found:
            assert found == expected
    os.kill(one.pid, signal.SIGKILL)
    one.wait()
    with in_progress.claimed("a") as found:
        assert found
        other, is_free = holder(home, "a")
        assert not is_free, "this process has it"
        other.kill()
        other.wait()


def test_where_nothing_can_be_written_all_compile(home: Path) -> None:
    assets.cache().write_text("a file in the place of the folder")
    with in_progress.claimed("a") as found:
        assert found
