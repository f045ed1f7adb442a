"""Processes that a test starts: what they see, and which are left, however deep.

These are found by a mark in their environment.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.support.tree import TREE


def environment(home: Path, *folders: Path) -> dict[str, str]:
    """The environment of a process that imports from these folders and this tree."""
    path = os.pathsep.join(map(str, [*folders, TREE]))
    return {**os.environ, "TUNEFA_HOME": str(home), "PYTHONPATH": path}


def alive(mark: str) -> list[str]:
    """Command lines of the processes with that mark: children, their children, and orphans.

    multiprocessing's resource tracker stays until this process ends, by design.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            marked = mark.encode() in (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # ended since, or another user's
            continue
        if marked and command and "resource_tracker" not in command:
            found.append(command)
    return found


def none_left(mark: str) -> bool:
    """Whether all of them are gone, or go within a moment."""
    for _ in range(50):
        if not alive(mark):
            return True
        time.sleep(0.1)
    return False


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
