"""Checks in the interpreter that share a process: most of the time of one is the start of it.

Such a process keeps the modules of kernels by name, and the folders of the last test's own kernels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tunefa.compile.workers import Workers
from tunefa.measure import gate


@contextlib.contextmanager
def started() -> Iterator[Workers]:
    """A process with the limits of `gate.in_interpreter`."""
    with Workers(1, gate.INTERPRETER_MEMORY_BYTES) as process:
        yield process


def install(monkeypatch: pytest.MonkeyPatch, process: Workers) -> None:
    """Lets `gate.in_interpreter` use this process, and leave it to the next check."""
    monkeypatch.setattr(gate, "Workers", lambda *_: contextlib.nullcontext(process))
