"""The time of a sweep's GPUs: the seconds in which each timed or raced, and what it waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tunefa.compile.pool import WAITING
from tunefa.search.gpu_turns import Turns
from tunefa.search.request import Processes
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.study import SweepStudy

NOTE = "gpu time: "
"""The beginning of the study's notes, one for each worker process."""
NOTE_S = 1.0
"""Seconds between two notes of a worker, which a killed one loses. A note takes milliseconds."""
_NOT_TIMED = ("load_device", "look_for_versions", "probe")
"""Tasks of a bench that time nothing: it loads PyTorch, or finds out whether the GPU works."""


@dataclass(frozen=True)
class GpuTime:
    """The seconds of one GPU. Its search chooses configs and writes files in what is left. The
    parts may overlap. While a process starts, no search may be ready, or compilers may work. While
    the search with the GPU waits for a compiler, another one may time its configs."""

    present_s: float = 0.0
    """It had a worker."""
    busy_s: float = 0.0
    """Its bench checked, timed and raced configs."""
    free_s: float = 0.0
    """No search was ready for it, where several searches take turns; else 0."""
    compiling_s: float = 0.0
    """The search that had it waited for a compiler. It may have been busy for another one then."""
    starting_s: float = 0.0
    """A new process loaded PyTorch, or found out whether it works."""

    @property
    def busy_share(self) -> float | None:
        """The share of its time in which it timed and raced; None if it had no worker."""
        return self.busy_s / self.present_s if self.present_s > 0 else None


class Meter:
    """Notes in the study what the GPU of this worker does. A killed one loses NOTE_S of it."""

    def __init__(
        self, study: SweepStudy, who: HostProcess, shared: Processes | None, gpu_turns: Turns | None
    ) -> None:
        """`gpu_turns` are those of its searches; None where they are made one after the other."""
        self._study, self._who, self._shared, self._turns = study, who, shared, gpu_turns
        self._next, self._begun = 0.0, time.monotonic()

    def note(self, now: bool = False) -> None:
        """Notes it if NOTE_S are over, or `now`. Raises TunefaError if the storage fails."""
        if self._shared is None or not (now or time.monotonic() >= self._next):
            return
        self._next = time.monotonic() + NOTE_S
        found = measured(time.monotonic() - self._begun, self._shared, self._turns)
        name = f"{NOTE}{self._who.host} {self._who.pid} {self._who.started}"
        place = {"seat": self._who.seat, "host": self._who.host.split()[0]}
        self._study.note(name, {**place, **asdict(found)})


def measured(present_s: float, shared: Processes, gpu_turns: Turns | None) -> GpuTime:
    """Returns what the processes of a worker that began `present_s` seconds ago did so far. A task
    that goes on is not counted yet."""
    ran = dict(shared.bench.ran_s)
    busy_s = sum(seconds for task, seconds in ran.items() if task not in _NOT_TIMED)
    starting_s = sum(ran.values()) - busy_s
    free_s = 0.0 if gpu_turns is None else gpu_turns.free_s
    found = present_s, busy_s, free_s, shared.compilers.ran_s[WAITING], starting_s
    return GpuTime(*[round(seconds, 2) for seconds in found])


def of(notes: Mapping[str, Any]) -> dict[str, GpuTime]:
    """Returns the time of each GPU over all processes that it has had, by the name of its seat,
    with that of its host where there are several."""
    said = [each for name, each in notes.items() if name.startswith(NOTE)]
    hosts = {each["host"] for each in said}
    found: dict[str, GpuTime] = {}
    for each in said:
        name = each["seat"] if len(hosts) == 1 else f"{each['seat']} of {each['host']}"
        before = asdict(found.get(name, GpuTime()))
        # Notes of an older tunefa lack parts.
        found[name] = GpuTime(**{part: s + each.get(part, 0.0) for part, s in before.items()})
    return found
