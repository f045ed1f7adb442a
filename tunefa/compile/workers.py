"""Worker processes, for tasks that may crash, hang or leave a device unusable.

Pebble's pool kills a task that exceeds its time limit, and replaces a worker that died. Workers are
spawned, not forked, so that they do not inherit a CUDA context. They end with their parent.
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
    """A pool of up to `count` processes, which are started when needed."""

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
        """Starts `task`, a function of a module, with a limit in seconds.

        The future raises TimeoutError if the limit is exceeded, ProcessExpired if the worker died.
        """
        with _delayed_ctrl_c():
            future: Future[_Result] = self._pool.schedule(task, args=arguments, timeout=limit_s)
        return future

    def stop(self) -> None:
        """Ends all workers at once, and the processes that they wait for."""
        with _delayed_ctrl_c():
            self._pool.stop()  # type: ignore[no-untyped-call]
            self._pool.join()

    def renew(self) -> None:
        """Ends all workers. The next task starts new ones."""
        self.stop()
        self._pool = self._fresh()

    def _fresh(self) -> ProcessPool:
        context = multiprocessing.get_context("spawn")
        initargs = [os.getpid()]
        return ProcessPool(
            self.count, initializer=_end_with_parent, initargs=initargs, context=context
        )


def _end_with_parent(parent: int) -> None:
    """Runs in a new worker. Makes SIGTERM end it, together with the ptxas that it waits for.

    The pool sends SIGTERM to stop a worker; the system sends it when the parent dies. The worker
    gets its own process group, so that Ctrl-C in a terminal reaches the parent only.
    """
    os.setpgrp()
    signal.signal(signal.SIGTERM, lambda number, frame: os.killpg(0, signal.SIGKILL))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent died before prctl took effect
        os.killpg(0, signal.SIGKILL)


@contextlib.contextmanager
def _delayed_ctrl_c() -> Iterator[None]:
    """Delays Ctrl-C until the end of the context.

    A KeyboardInterrupt inside `queue.put` leaves a stale waiter in the queue's condition. Then the
    next put wakes up no thread, and joining the pool never ends (in 1 of 10 interrupts).
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
