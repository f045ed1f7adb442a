"""Virtual time for all threads of a process: it moves on when none of them has anything to do.

A thread that sleeps, or waits with a limit, waits for the virtual clock. Another thread looks
whether all others wait, and then sets the clock to the first moment at which one goes on. So
computing takes no time, a busy machine changes nothing, and minutes of waiting take seconds.

The states of threads are those in Linux's `/proc`.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any

LIMITS_S = 0.05
"""A wait with a limit ends at a multiple of it, so that many that look again do so together."""
_LOOK_S = 0.0004
"""Real seconds between two looks at the threads."""
_BEGIN = 1_800_000_000.0
"""The value of `time.time` at the beginning."""
_really_sleep = time.sleep


class VirtualTime:
    """The clock of a process, once it is installed; there is no way back."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[[], Any]]] = []
        self._number = itertools.count()
        self._lock = threading.Lock()
        self._own = 0
        self._files: dict[str, list[int]] = {}

    def install(self) -> None:
        """Puts it in the place of the real clock."""
        time.monotonic = lambda: self.now
        time.time = lambda: _BEGIN + self.now
        time.sleep = self.sleep  # type: ignore[assignment]
        threading.Condition.wait = _wait(self)  # type: ignore[method-assign]
        threading.Thread(target=self._run, daemon=True).start()

    def call_at(self, when: float, what: Callable[[], Any]) -> None:
        """Calls a function at that time; it must not wait for anything."""
        with self._lock:
            heapq.heappush(self._calls, (max(when, self.now), next(self._number), what))

    def sleep(self, seconds: float) -> None:
        """Waits so many virtual seconds."""
        waiter = threading.Lock()
        waiter.acquire()
        self.call_at(self.now + seconds, waiter.release)
        waiter.acquire()

    def _run(self) -> None:
        self._own, seen = threading.get_native_id(), None
        while True:
            _really_sleep(_LOOK_S)
            before, seen = seen, self._ran()
            if seen is not None and seen == before:
                self._go_on()
                seen = None

    def _ran(self) -> list[bytes] | None:
        """The time that each other thread has run so far; None if one runs now."""
        found = []
        for name in os.listdir("/proc/self/task"):
            if int(name) == self._own:
                continue
            try:
                if name not in self._files:
                    paths = (f"/proc/self/task/{name}/{file}" for file in ("stat", "schedstat"))
                    self._files[name] = [os.open(path, os.O_RDONLY) for path in paths]
                state, ran = (os.pread(file, 256, 0) for file in self._files[name])
            except OSError:  # it has ended
                for file in self._files.pop(name, ()):
                    os.close(file)
                return None
            if state[state.rindex(b")") + 2 :][:1] != b"S":
                return None
            found.append(ran)
        return found

    def _go_on(self) -> None:
        with self._lock:
            if not self._calls:
                return
            self.now = max(self.now, self._calls[0][0])
            due = []
            while self._calls and self._calls[0][0] <= self.now:
                due.append(heapq.heappop(self._calls)[2])
        for each in due:
            each()


def _wait(clock: VirtualTime) -> Callable[..., bool]:
    """Returns `threading.Condition.wait` with a limit in virtual seconds."""

    def wait(self: Any, timeout: float | None = None) -> bool:
        waiter, is_late = threading.Lock(), False
        waiter.acquire()
        self._waiters.append(waiter)
        saved = self._release_save()

        def end() -> None:
            nonlocal is_late
            with contextlib.suppress(RuntimeError):  # it was notified
                waiter.release()
                is_late = True

        try:
            if timeout is None:
                waiter.acquire()
            elif timeout > 0:
                steps = math.ceil((clock.now + timeout) / LIMITS_S - 1e-6)
                clock.call_at(steps * LIMITS_S, end)
                waiter.acquire()
            else:
                is_late = not waiter.acquire(False)
        finally:
            self._acquire_restore(saved)
        with contextlib.suppress(ValueError):  # who notified has removed it
            self._waiters.remove(waiter)
        return not is_late

    return wait
