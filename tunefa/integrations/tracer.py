"""Counts and times the calls that a trace sees."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from tunefa.spec.workload import Workload
from tunefa.store.traced import Traced

Returned = TypeVar("Returned")
CUDA: Any = torch.cuda  # parts of it have no types
MOST_PENDING = 256
"""The most calls that may wait for the device before their times are asked for."""


class Tracer:
    """Counts and times calls. Threads may share it."""

    def __init__(self) -> None:
        self._found = Traced()
        self._pending: list[tuple[Workload | str, Any, Any]] = []
        self._lock = threading.Lock()
        self._inside = threading.local()

    def call(
        self, what: Callable[[], Workload | str], device: Any, work: Callable[[], Returned]
    ) -> Returned:
        """Returns `work()`, and adds it as a call of `what()` on a device. What it calls itself is
        a part of it, and not counted."""
        if getattr(self._inside, "now", False):
            return work()
        self._inside.now = True
        try:
            named = what()
            if device.type == "cuda":
                return self._on_cuda(named, device, work)
            start = time.perf_counter()
            made = work()
            self._add(named, device, time.perf_counter() - start)
            return made
        finally:
            self._inside.now = False

    def found(self) -> Traced:
        """The calls that were seen so far."""
        with self._lock:
            self._settle()
            return self._found

    def _on_cuda(
        self, named: Workload | str, device: Any, work: Callable[[], Returned]
    ) -> Returned:
        if CUDA.is_current_stream_capturing():  # there is no time before the graph is replayed
            made = work()
            self._add(named, device, 0.0)
            return made
        events = [CUDA.Event(enable_timing=True) for _ in range(2)]
        stream = CUDA.current_stream(device)
        events[0].record(stream)
        made = work()
        events[1].record(stream)
        with self._lock:
            self._name(device)
            self._pending.append((named, *events))
            if len(self._pending) >= MOST_PENDING:
                self._settle()
        return made

    def _add(self, named: Workload | str, device: Any, seconds: float) -> None:
        with self._lock:
            self._name(device)
            self._found.add(named, seconds)

    def _name(self, device: Any) -> None:
        if not self._found.device:
            on_cuda = device.type == "cuda"
            self._found.device = CUDA.get_device_name(device) if on_cuda else device.type

    def _settle(self) -> None:
        """Adds the calls that wait for the device."""
        for named, start, end in self._pending:
            end.synchronize()
            self._found.add(named, start.elapsed_time(end) / 1000)
        self._pending.clear()
