"""Processes that do what may crash, hang or poison a device, and outlive nothing.

Pebble's pool kills a task that outlasts its limit and replaces a worker that died. Workers are
spawned, so that none inherits a CUDA context.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from pebble import ProcessPool

_Result = TypeVar("_Result")
_PR_SET_PDEATHSIG = 1  # prctl(2)


class Workers:
    """A pool of `count` processes, started when they are needed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = self._fresh()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def submit(
        self, task: Callable[..., _Result], arguments: tuple[Any, ...], limit_s: float
    ) -> Future[_Result]:
        """Starts `task` of a module; the future raises TimeoutError or ProcessExpired."""
        with _ctrl_c_later():
            future: Future[_Result] = self._pool.schedule(task, args=arguments, timeout=limit_s)
        return future

    def stop(self) -> None:
        """Ends all workers at once, and what they wait for."""
        with _ctrl_c_later():
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()

    def renew(self) -> None:
        """Ends all workers; the next task gets a new one."""
        self.stop()
        self._pool = self._fresh()

    def _fresh(self) -> ProcessPool:
        context = multiprocessing.get_context("spawn")
        initargs = [os.getpid()]
        return ProcessPool(
            self.count, initializer=_outlive_nothing, initargs=initargs, context=context
        )


def _outlive_nothing(parent: int) -> None:
    """In a worker: the end of the parent, or being stopped, ends it and the ptxas it waits for.

    Both come as SIGTERM. The group of its own keeps Ctrl-C in a terminal, which is the parent's to
    answer, from workers.
    """
    os.setpgrp()
    signal.signal(signal.SIGTERM, lambda number, frame: os.killpg(0, signal.SIGKILL))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before that took effect
        os.killpg(0, signal.SIGKILL)


@contextlib.contextmanager
def _ctrl_c_later() -> Iterator[None]:
    """Ctrl-C inside takes effect at the end.

    KeyboardInterrupt in the middle of `queue.put` leaves a stale waiter in the queue's condition:
    the next put wakes nobody, and joining the pool waits for ever (seen in 1 of 10 interrupts).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    missed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: missed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if missed:
        raise KeyboardInterrupt
