"""Processes that a test starts: what they see, what they say, and which are left, however deep.

Those that are left are found by a mark in their environment.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import interpreter_server
from tests.support.interpreter_server import Request
from tests.support.tree import TREE
from tunefa.compile import languages


class Shared(SimpleNamespace):
    """Stands for `Workers`."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**{"hurry": lambda future: None, **parts}, begun={})


def environment(home: Path, *folders: Path) -> dict[str, str]:
    """The environment of a process that imports from these folders and this tree."""
    path = os.pathsep.join(map(str, [*folders, TREE]))
    return {**os.environ, "TUNEFA_HOME": str(home), "PYTHONPATH": path}


def interpreted(module: str) -> list[dict[str, Any]]:
    """The lines of JSON that a module of tests/support prints in Triton's interpreter."""
    found = _in_interpreter(module=f"tests.support.{module}")
    return [json.loads(line) for line in found.splitlines()]


def interpreted_code(code: str) -> str:
    """The text that `code` prints in Triton's interpreter, which is prepared; skips the test where
    there is none."""
    if reason := languages.load("triton").why_no_interpreter():
        pytest.skip(reason)
    return _in_interpreter(code=code)


@functools.cache
def _server() -> subprocess.Popen[str]:
    """One for all tests of this process: the interpreter is chosen when Triton is imported."""
    server = interpreter_server.started()
    atexit.register(server.communicate)  # closes its input, and waits for its end
    return server


def _in_interpreter(module: str = "", code: str = "", limit_s: float = 300.0) -> str:
    """The output of a program in a process of its own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    with tempfile.NamedTemporaryFile("r") as output, tempfile.NamedTemporaryFile("r") as errors:
        request = Request(module, code, environment, output.name, errors.name)
        status = _answer(request, limit_s)
        assert status == "0\n", (status, errors.read()[-3000:])
        return output.read()


def _answer(request: Request, limit_s: float) -> str:
    """The server's answer: an exit status, or nothing where it ended. Kills it at the limit."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    late = threading.Timer(limit_s, os.killpg, (server.pid, signal.SIGKILL))
    late.start()
    try:
        print(json.dumps(request), file=server.stdin, flush=True)
        answer = server.stdout.readline()
    finally:
        late.cancel()
    if not answer:
        _server.cache_clear()
    return answer


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
