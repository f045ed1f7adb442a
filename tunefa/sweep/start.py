"""The start of a worker. Its processes begin to load PyTorch and compilers before it loads modules
of its own: each takes seconds."""

from __future__ import annotations

import importlib
import os

from tunefa.sweep import processes
from tunefa.sweep.seat import Seat


def work(seat: Seat) -> str | None:
    """Works for a sweep until nothing is left of the budget or of the sweep.

    Returns why its GPU was put aside; None at the sweep's end. Raises TunefaError if the storage,
    a journal or the store cannot be written, if there is no GPU, and if this host has other
    versions than the sweep.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with processes.started(seat) as started:
        worker = importlib.import_module("tunefa.sweep.worker")
        why: str | None = worker.work(seat, started)
    return why
