"""The engine of a simulated sweep: its workers are threads of this process.

Searches, their turns at a GPU, the study and what divides the budget are the real ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.simulated_sweep.host import Compilers, Log, Process
from benchmarks.simulated_sweep.virtual_time import VirtualTime
from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice
from tunefa.measure import loading
from tunefa.spec.arch import Arch
from tunefa.spec.kernel import Kernel
from tunefa.spec.space import Feasible, Space
from tunefa.spec.workload import Workload
from tunefa.sweep import installed, predicted_gain, worker
from tunefa.sweep.cores import Share
from tunefa.sweep.engine import Ended
from tunefa.sweep.installed import Installed
from tunefa.sweep.plan import Plan
from tunefa.sweep.processes import Started
from tunefa.sweep.seat import Seat

EVERY = 16
"""One config of so many of a space is there, so that they are listed in less time."""
MODELS = 3
LIBRARIES = ("cudnn",)
"""The ends of the names of libraries that are installed."""
_LIMIT_S = 60.0
_all = Space.feasible


def install() -> None:
    """Puts what the simulation has in the place of GPUs, versions and spaces."""
    instead: list[tuple[Any, str, Any]] = [
        (driver, "devices", lambda: [SeenDevice("NVIDIA H200", (9, 0), 132, 2**37)]),
        (Space, "feasible", few),
        (installed, "ask", ask),
        (predicted_gain, "Workers", lambda count: Process()),
    ]
    for place, name, other in instead:
        setattr(place, name, other)


def few(self: Space, workload: Workload, arch: Arch) -> Feasible:
    """Returns one of EVERY feasible configs, and the default."""
    found, default = _all(self, workload, arch), self.default(workload, arch)
    kept = [config for config in found.configs[::EVERY] if config != default]
    return Feasible((default, *kept), found.refused)


def ask(started: Started, asked: Sequence[Kernel], arch: str) -> Callable[[], Installed]:
    """Returns a function that says what is installed, once the bench has loaded PyTorch."""
    names = [each.name for each in asked]
    lacking = {each.name: "it is not installed" for each in asked
               if each.is_library and not each.name.endswith(LIBRARIES)}  # fmt: skip
    found = Installed({name: {"tunefa": "simulated"} for name in names}, lacking)
    loaded = started.bench.submit(look_for_libraries, (), _LIMIT_S)

    def answer() -> Installed:
        loaded.result()
        return found

    return answer


def look_for_libraries() -> None:
    """Runs in a bench."""


class Engine:
    """Starts threads, which end when their work does."""

    def __init__(self, clock: VirtualTime, gpus: int, compilers: int, races: float = 1.0) -> None:
        """Each GPU has so many `compilers`; `races` take so many times as long as usual."""
        self.logs = {f"GPU {number}": Log() for number in range(gpus)}
        self.ended_at: dict[str, float] = {}
        """By GPU: when its worker ended; without those that were ended."""
        self._clock, self._count, self._races = clock, compilers, races
        self._cache: set[str] = set()
        self._ends: list[Ended] = []

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None: ...

    def stop(self) -> None:
        """Leaves threads that still work to the end of the process."""

    def seats(self, plan: Plan, place: str, study: str) -> list[Seat]:
        """Returns a seat for each GPU."""
        share = Share(compilers=frozenset({0}), processes=self._count)
        return [Seat(place, study, name, share, measured=True) for name in self.logs]

    def start(self, seat: Seat) -> None:
        """Starts a thread."""
        threading.Thread(target=self._work, args=(seat,), daemon=True).start()

    def ended(self, wait_s: float) -> Sequence[Ended]:
        """Returns the workers that have ended."""
        self._clock.sleep(wait_s)
        found, self._ends = self._ends, []
        return found

    def _work(self, seat: Seat) -> None:
        error: Any = None
        try:
            bench = Process(self.logs[seat.name], self._races)
            loading.warm_up(bench)
            compilers = Compilers(self._clock, self._count, self._cache)
            models = tuple(Process() for _ in range(MODELS))
            worker.work(seat, Started(bench, compilers, models))
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
        self.ended_at[seat.name] = self._clock.now
        self._ends.append(Ended(seat, error))
