"""A device and its compilers on a clock that the test drives: what a search does with its time."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tunefa.compile.pool import Rank
from tunefa.measure.bench import KernelRaceResult
from tunefa.measure.objective import Raced
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources, Trial, identity


@dataclass
class Machine:
    """The times of a machine; a kernel's time of its default, and of all other configs."""

    us: dict[str, tuple[float, float]]
    compile_s: dict[str, float]
    cores: int = 16
    judge_s: float = 0.25
    race_s: float = 2.0
    idle_from: list[float] = field(default_factory=list)
    """The times at which each core has compiled what it was given."""

    def compiled_at(self, kernel: str) -> float:
        """The time at which a config that is submitted now is compiled."""
        if not self.idle_from:
            self.idle_from = [time.monotonic()] * self.cores
        core = min(range(self.cores), key=lambda each: self.idle_from[each])
        begins = max(time.monotonic(), self.idle_from[core])
        self.idle_from[core] = begins + self.compile_s.get(kernel, 0.0)
        return self.idle_from[core]


class Simulated:
    """In place of the objective that measures."""

    kind, mode, reserve_s = "measured", "eager", 7.0
    machine: ClassVar[Machine]

    def __init__(self, case: Case, *_: Any) -> None:
        self.case, self.width = case, 2 * self.machine.cores
        self._pending: list[tuple[float, Config]] = []
        self._prepared: dict[tuple[object, ...], float] = {}

    def __enter__(self) -> Simulated:
        return self

    def __exit__(self, *_: object) -> None: ...

    def prepare(self, config: Config, compilers: Any) -> None:
        self._prepared[identity(config)] = self.machine.compiled_at(self.case.kernel.name)

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        ready = self._prepared.pop(identity(config), None)
        self._pending.append((ready or self.machine.compiled_at(self.case.kernel.name), config))

    def settle(self) -> Trial | None:
        """Returns None: nothing runs ahead."""
        return None

    def next(self, wait_s: float = math.inf) -> Trial | None:
        ready, config = min(self._pending, key=lambda each: each[0])
        if ready - time.monotonic() > wait_s:
            time.sleep(wait_s)
            return None
        self._pending.remove((ready, config))
        time.sleep(max(0.0, ready - time.monotonic()) + self.machine.judge_s)
        of_default, of_others = self.machine.us[self.case.kernel.name]
        us = of_default if config == self.case.default() else of_others
        # Each is another program, as counted by the rules that stop a search.
        code = str(sorted(config.items()))
        return Trial(config, "ok", resources=Resources(1, 1, 0, 0, code=code),
                     samples_us=(us, us), error=1e-3)  # fmt: skip

    def race(self, trials: Any, default: Any, until: float = math.inf) -> Raced:
        self._pending.clear()
        self.machine.idle_from = []
        ranked = sorted(trials, key=lambda trial: trial.median_us)
        time.sleep(min(0.4 * len(ranked), self.machine.race_s))
        return Raced(ranked, ranked[0], {"decision": "the first"})

    def race_kernels(self, own: Trial, rivals: Any, until: float = math.inf) -> KernelRaceResult:
        time.sleep(1.0)
        return KernelRaceResult(self.case.kernel.name, {"decision": "the faster one"})
