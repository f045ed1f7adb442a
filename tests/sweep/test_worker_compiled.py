"""tunefa/sweep/worker.py: while compilers are busy, the searches of a worker try what another one
of them has compiled."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.fake_objective import Fake, by_tile
from tests.support.sweeping import begun_defaults, few, made, plan
from tunefa.compile.pool import Rank
from tunefa.compile.workers import Workers
from tunefa.costmodel.before_compiling import order_parameters
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.spec.arch import Arch
from tunefa.spec.space import Feasible, Space
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Trial
from tunefa.spec.workload import Workload
from tunefa.sweep import clock as clocks
from tunefa.sweep import installed, worker
from tunefa.sweep.clock import Clock
from tunefa.sweep.cores import Share
from tunefa.sweep.processes import Started
from tunefa.sweep.seat import Seat

SHARE = Share(compilers=frozenset({0}), processes=1)
"""Compilers that have cores of their own, so that searches take turns at the GPU."""


class Slow(Fake):
    """Its compilers are busy until it waits for them, but for what has a binary."""

    judge, width = staticmethod(by_tile), 1
    binaries: ClassVar[dict[object, int]]
    """By what compilers see of a config, the length of the workload that had it first."""
    free: ClassVar[list[tuple[int, int | None]]]
    """The lengths of the workloads that tried what needs no compiler, and that had it first."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.length, self.unseen = case.workload.seqlen_q, order_parameters(case.kernel.space)

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        if rank == Rank.COMPILED:
            self.free.append((self.length, self.binaries.get(self.binary(config))))
        super().submit(config, rank)

    def is_ready(self, wait_s: float) -> bool:
        return wait_s > 0.0 or any(self.binary(each) in self.binaries for each in self.pending)

    def next(self, wait_s: float = math.inf) -> Trial | None:
        self.pending.sort(key=lambda each: self.binary(each) not in self.binaries)
        self.binaries.setdefault(self.binary(self.pending[0]), self.length)
        return super().next(wait_s)

    def binary(self, config: Config) -> object:
        return tuple(value for name, value in config.items() if name not in self.unseen)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, fake: type[Fake]) -> Iterator[type[Slow]]:
    """The objective of every search; no process is started."""
    Slow.binaries, Slow.free = {}, []
    begun_defaults(monkeypatch)
    known: dict[Workload, Feasible] = {}

    def fewer(self: Space, workload: Workload, arch: Arch) -> Feasible:
        if workload not in known:
            found = few(self, workload, arch)
            known[workload] = Feasible(found.configs[::4], found.refused)
        return known[workload]

    monkeypatch.setattr(Space, "feasible", fewer)
    monkeypatch.setattr(search, "_objective", lambda state, case: Slow(case))
    monkeypatch.setattr(installed, "ask", lambda *_: None)
    before = sys.getswitchinterval()
    yield Slow
    sys.setswitchinterval(before)


def test_a_search_tries_what_another_one_has_compiled(tmp_path: Path, slow: type[Slow]) -> None:
    weights = {Workload.parse("q1024_h8_kv2_d64"): 2.0, Workload.parse("q512_h8_kv2_d64"): 1.0}
    held = made(tmp_path, plan(weights=weights, strategy="prior"))
    held.note(clocks.NOTE, Clock.started(Budget(trials=24), 0.0).to_data())
    seat = Seat(held.place, held.name, "GPU 0", SHARE)
    assert worker.work(seat, Started(Workers(1), Workers(1))) is None
    assert slow.free and all(first is not None for _, first in slow.free)
    assert any(length != first for length, first in slow.free), "the binary of another workload"
