"""The processes of a simulated host: benches and compilers that wait on a virtual clock."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.simulated_sweep import device
from benchmarks.simulated_sweep.device import Device
from benchmarks.simulated_sweep.virtual_time import VirtualTime
from tunefa.compile.workers import Workers
from tunefa.spec.trial import Resources

COMPILE_S = {"cuda": (1.0, 3.0), "triton": (3.0, 8.0), "gluon": (3.0, 8.0), "library": (0.1, 0.2)}
"""The seconds in which compilers of a language make a binary, from and to."""
GRADIENTS = 2.0
"""So many times as long it takes for gradients."""
CACHED_S = 0.1
LOAD_S = 4.5
"""The seconds in which a bench loads PyTorch and makes its context."""
_NOT_TIMED = ("load_device", "look_for_libraries")


@dataclass
class Log:
    """The tasks of the bench of a GPU: (task, begin, end) in virtual seconds. None of them was cut
    short."""

    done: list[tuple[str, float, float]] = field(default_factory=list)

    def busy_s(self, begin: float, end: float) -> float:
        """Returns the seconds of an interval in which it checked, timed and raced."""
        spans = [(a, b) for task, a, b in self.done if task not in _NOT_TIMED]
        return sum(max(0.0, min(b, end) - max(a, begin)) for a, b in spans)


class Process(Workers):
    """A bench, or a process that asks the model: a thread. A bench's methods take as long as those
    of a device would; what else it computes takes no time."""

    def __init__(self, log: Log | None = None, races: float = 1.0) -> None:
        super().__init__(1)
        self._pool, self._log = ThreadPoolExecutor(1), log or Log()
        self._device, self._is_loaded = Device(races=races), False

    def submit(
        self, task: Callable[..., Any], arguments: tuple[Any, ...], limit_s: float, rank: int = 0
    ) -> Future[Any]:
        """Does the task after those before it."""
        return self._pool.submit(self._run, task, arguments)

    def _run(self, task: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        begun, name, found = time.monotonic(), task.__name__, None
        if name == "run_in_process":
            found = self._device.run(*arguments)
        elif name == "load_device":
            time.sleep(0.0 if self._is_loaded else LOAD_S)
            self._is_loaded = True
        else:
            found = task(*arguments)
        self.ran_s[name] += time.monotonic() - begun
        self._log.done.append((name, begun, time.monotonic()))
        return found

    def stop(self) -> None:
        """Drops what was not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Compilers(Workers):
    """Compilers of one GPU. A binary that one has made is in the cache of all GPUs."""

    def __init__(self, clock: VirtualTime, count: int, cache: set[str]) -> None:
        super().__init__(count)
        self.apart = True
        self._clock, self._free, self._cache = clock, count, cache
        self._waiting: list[list[Any]] = []
        self._number, self._guard = itertools.count(), threading.RLock()

    def submit(
        self, task: Callable[..., Any], arguments: tuple[Any, ...], limit_s: float, rank: int = 0
    ) -> Future[Any]:
        """Compiles a config."""
        future: Future[Any] = Future()
        with self._guard:
            heapq.heappush(self._waiting, [rank, next(self._number), future, arguments])
            self._begin()
        return future

    def hurry(self, future: Future[Any]) -> None:
        """Lets a config that waits come before others."""
        with self._guard:
            for each in self._waiting:
                if each[2] is future:
                    each[0] = 0
            heapq.heapify(self._waiting)

    def stop(self) -> None:
        """Leaves its configs uncompiled."""

    def _begin(self) -> None:
        while self._free and self._waiting:
            _, _, future, arguments = heapq.heappop(self._waiting)
            if future.set_running_or_notify_cancel():
                self._free -= 1
                self._compile(future, *arguments)

    def _compile(
        self, future: Future[Any], names: tuple[str, str, str], config: Any, _: object
    ) -> None:
        kernel, (op, *parts) = names[0], names[1].split("_")
        dims = [each for each in parts if each.startswith("d")]
        binary = f"{kernel} {dims} {sorted(config.items())}"
        low, high = COMPILE_S[device.language(kernel)]
        seconds = (low + (high - low) * device.chance(binary)) * (GRADIENTS if op == "bwd" else 1.0)
        seconds = CACHED_S if binary in self._cache else seconds
        self._cache.add(binary)
        found = "ok", Resources(1024, 64, 0, 0), seconds, ""
        self._clock.call_at(self._clock.now + seconds, lambda: self._end(future, found))

    def _end(self, future: Future[Any], found: Any) -> None:
        with self._guard:
            self._free += 1
            self._begin()
        future.set_result(found)
