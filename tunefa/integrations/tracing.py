"""`trace`: writes down which attention workloads a program runs, how often, and for how long.

Calls are seen where they are computed: PyTorch's attention operators, flash-attn's, and tunefa's
own functions, forward and backward. So it sees compiled models and autograd's threads too. Times
are those between two events on the call's CUDA stream, or of the host's clock on the CPU.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from tunefa.errors import TunefaError
from tunefa.integrations import traced_operators, traced_runtime
from tunefa.integrations.tracer import Tracer
from tunefa.store import results
from tunefa.store.traced import Traced

_ONE = threading.Lock()
"""Held while a trace is on: two would count each other's work."""


@contextlib.contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Traces the attention that is computed inside of the `with`, and writes it to a YAML file.

        with tunefa.trace("workloads.yaml"):
            train()

    `tunefa search --workloads workloads.yaml` searches what it wrote. It sees all threads of the
    process, and no other process. Replays of CUDA graphs are not calls: what a graph captured
    counts once, without a time. Raises TunefaError where a trace is on already, and if the file
    cannot be written.
    """
    with tracing() as found:
        yield
        seen = found()
    results.write_text(Path(path), seen.text())


@contextlib.contextmanager
def tracing() -> Iterator[Callable[[], Traced]]:
    """Traces what is inside of the `with`; a function that returns what was seen so far."""
    if not hasattr(torch.library, "get_kernel"):
        raise TunefaError(
            f"PyTorch {torch.__version__} cannot be traced: it has no torch.library.get_kernel, "
            f"which is new in 2.10: install a newer PyTorch"
        )
    if not _ONE.acquire(blocking=False):
        raise TunefaError("a trace is on already: end it before another one begins")
    try:
        tracer = Tracer()
        with traced_runtime.observed(tracer), traced_operators.observed(tracer):
            yield tracer.found
    finally:
        _ONE.release()


def trace_process(folder: Path) -> None:
    """Traces this process until it ends, and writes a file of its own into a folder."""
    running = tracing()
    found = running.__enter__()

    def write() -> None:
        seen = found()
        running.__exit__(None, None, None)
        if seen.workloads or seen.other:
            results.write_text(folder / f"{os.getpid()}.yaml", seen.text())

    atexit.register(write)
