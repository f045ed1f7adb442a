"""The start of a worker. Its processes begin to load PyTorch and compilers before it loads modules
of its own: each takes seconds."""

from __future__ import annotations

import contextlib
import importlib
import os

from tunefa.sweep import processes
from tunefa.sweep.processes import Started
from tunefa.sweep.seat import Seat

_MODULE = "tunefa.sweep.worker"
_begun: dict[str, tuple[contextlib.ExitStack, Started | None]] = {}
"""By the name of a seat: the processes that were started before its work, in the process that does
it, and what ends them."""


def begin(seat: Seat) -> None:
    """Starts the processes of a worker and loads its modules, before there is a study. The `work`
    of this process has them then."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _begun[seat.name] = _started(seat)
    importlib.import_module(_MODULE)


def work(seat: Seat) -> str | None:
    """Works for a sweep until nothing is left of the budget or of the sweep.

    Returns why its GPU was put aside; None at the sweep's end. Raises TunefaError if the storage,
    a journal or the store cannot be written, if there is no GPU, and if this host has other
    versions than the sweep.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    stack, started = _begun.pop(seat.name) if seat.name in _begun else _started(seat)
    with stack:
        why: str | None = importlib.import_module(_MODULE).work(seat, started)
    return why


def _started(seat: Seat) -> tuple[contextlib.ExitStack, Started | None]:
    stack = contextlib.ExitStack()
    return stack, stack.enter_context(processes.started(seat))
