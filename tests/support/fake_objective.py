"""Searches without a compiler: an objective that says at once what becomes of a config."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tunefa.compile.pool import Rank
from tunefa.measure.objective import Raced
from tunefa.search.budget import Budget
from tunefa.search.request import Progress, Request
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Outcome, Resources, Trial
from tunefa.spec.workload import Workload
from tunefa.store import results as store
from tunefa.store.results import Store

SM90 = archs.load("sm90")
TARGET = Target.named("h200")
KERNEL = kernels.load("attention_fwd_triton")
WORKLOAD = Workload.parse("q1024_h8_kv2_d64")


def request(*wanted: Kernel, **changes: Any) -> Request:
    """Six trials of tunefa's own kernel for a small workload, changed by name."""
    made = Request(
        workload=WORKLOAD,
        target=TARGET,
        measured=False,
        kernels=wanted or (KERNEL,),
        budget=Budget(trials=6),
        workers=2,
    )
    return replace(made, **changes)


def user_store() -> Store:
    """The store of this test's home."""
    return Store([store.user_root()])


@dataclass
class Seen:
    """Collects progress; interrupts, as Ctrl-C does, at report `interrupt_at`, `times` times."""

    interrupt_at: int = 10**9
    times: int = 1
    reports: list[Progress] = field(default_factory=list)

    def __call__(self, progress: Progress) -> None:
        self.reports.append(progress)
        if self.interrupt_at <= len(self.reports) < self.interrupt_at + self.times:
            raise KeyboardInterrupt


class Fake:
    """Trials at once: their time, or what becomes of them, is what `judge` says of the config."""

    kind: Literal["measured", "predicted"] = "predicted"
    width = 4
    reserve_s = 0.0
    judge: Callable[[Config], float | Outcome] = staticmethod(lambda config: 100.0)
    wrong: frozenset[str] = frozenset()
    pause_s = 0.0

    def __init__(self, case: Case, *_: Any) -> None:
        self.kernel = case.kernel
        self.pending: list[Config] = []

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def prepare(self, config: Config, compilers: Any) -> None:
        pass

    def is_prepared(self, config: Config) -> bool:
        return True

    def is_ready(self, wait_s: float) -> bool:
        return True

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        self.pending.append(config)

    def settle(self) -> Trial | None:
        """Returns None: nothing runs ahead."""
        return None

    def next(self, wait_s: float = math.inf) -> Trial | None:
        time.sleep(min(self.pause_s, wait_s))
        if self.pause_s > wait_s:
            return None
        config = self.pending.pop(0)
        says: Any = self.judge(config)
        if isinstance(says, float):
            return Trial(config, "ok", resources=Resources(1, 1, 0, 0), predicted_us=says)
        outcome: Outcome = says
        return Trial(config, outcome, "because")

    def race(self, trials: Any, default: Config | None, until: float = math.inf) -> Raced:
        first, *rest = sorted(trials, key=lambda t: t.median_us) or [None]
        if first is None:
            return Raced([])
        if self.kernel.name in self.wrong:
            return Raced([replace(t, outcome="wrong", reason="nonsense") for t in (first, *rest)])
        right = replace(first, error=1e-4)
        return Raced([right, *rest], right)


def by_tile(config: Config) -> float:
    """128 x 128 with four warps and three stages is best."""
    tile = math.log2(config["BLOCK_M"] / 128), math.log2(config["BLOCK_N"] / 128)
    off = 10 * abs(tile[0]) + 10 * abs(tile[1])
    return float(100 + off + abs(config["num_warps"] - 4) + abs(config["num_stages"] - 3))
