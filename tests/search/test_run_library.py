"""A measured search where an installed library competes with a kernel of tunefa."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from rich.console import Console

from tests.support import library_kernel
from tests.support.own_kernels import OwnKernels
from tests.support.sample_space import TINY
from tunefa.cli.reports import search as reports
from tunefa.compile.pool import Rank
from tunefa.measure import measured
from tunefa.measure.bench import KernelRaceResult
from tunefa.measure.objective import Raced
from tunefa.search import parts, run
from tunefa.search.budget import Budget
from tunefa.search.request import Request
from tunefa.search.state import SearchState
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Target
from tunefa.spec.trial import Config, Resources, Trial
from tunefa.spec.workload import Workload
from tunefa.store import results as store

WORKLOAD, H200 = Workload.parse("h2_q64_d64"), Target.named("h200")
US = {"library": 10.0, "own": 20.0}
"""The time of every config of a kernel, by the beginning of its name."""


class Timed:
    """An objective that measures `US`."""

    kind, mode, width, reserve_s = "measured", "eager", 2, 0.0

    def __init__(self, case: Any, *_: Any) -> None:
        self.case, self._asked = case, list[Config]()

    def __enter__(self) -> Timed:
        return self

    def __exit__(self, *_: object) -> None: ...

    def prepare(self, config: Config, compilers: Any) -> None: ...

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        self._asked.append(config)

    def settle(self) -> Trial | None:
        return None

    def next(self, wait_s: float = math.inf) -> Trial | None:
        us = US[self.case.kernel.name.partition("_")[0]]
        made = Resources() if self.case.kernel.is_library else Resources(1024, 32, 0, 0)
        config = self._asked.pop(0)
        return Trial(config, "ok", resources=made, samples_us=(us, us), error=1e-3)

    def race(self, trials: Any, default: Any, until: float = math.inf) -> Raced:
        ranked = list(trials)
        return Raced(ranked, ranked[0], {"decision": "the first"})

    def race_kernels(self, own: Trial, rivals: Any, until: float = math.inf) -> KernelRaceResult:
        return KernelRaceResult(self.case.kernel.name, {"decision": "the faster one"})


@pytest.fixture
def both(own_kernels: OwnKernels) -> tuple[Kernel, Kernel]:
    own = own_kernels.add("own_kernel", "", TINY.replace("kernel: tiny", "kernel: NAME"))
    return library_kernel.add_forward(own_kernels, "library_kernel"), own


@pytest.mark.parametrize("fastest", ["library", "own"])
def test_the_faster_of_a_library_and_a_kernel_becomes_the_record(
    monkeypatch: pytest.MonkeyPatch,
    both: tuple[Kernel, Kernel],
    no_waiting_for_the_disk: None,
    fastest: str,
) -> None:
    monkeypatch.setattr(measured, "objective", lambda arch, mode: Timed)
    monkeypatch.setitem(US, fastest, 5.0)
    request = Request(WORKLOAD, H200, True, both, Budget(trials=8))
    found = run.search(request, store.default_store())
    assert found.record is not None and found.record.kernel == f"{fastest}_kernel"
    assert {each.kernel for each in found.finished} == {"library_kernel", "own_kernel"}
    if fastest == "library":
        assert found.record.config == {}
        assert found.record.provenance["compiler"].startswith("torch ")
    out = io.StringIO()
    reports.show(found, None, Console(file=out, width=100))
    assert f"kernel     {fastest}_kernel" in out.getvalue()


def test_a_library_is_tried_first_and_leaves_its_budget_to_the_others(
    both: tuple[Kernel, Kernel],
) -> None:
    library, own = both
    request = Request(WORKLOAD, H200, True, (own, library), Budget(seconds=60.0))
    feasible = {each.name: request.case(each).feasible() for each in both}
    state: Any = SearchState.__new__(SearchState)
    state.request, state.anchor = request, None
    made = parts.ordered(state, feasible, store.default_store())
    assert [part.name for part in made] == ["library_kernel", "own_kernel"]
    assert made[0].share == made[1].share > 0.8


@pytest.mark.parametrize("fastest", ["fa2", "triton"])
def test_libraries_over_a_cache_compete_where_bits_may_depend_on_the_batch(
    monkeypatch: pytest.MonkeyPatch, no_waiting_for_the_disk: None, fastest: str
) -> None:
    both = tuple(kernels.load(f"attention_decode_{name}") for name in ("triton", "fa2"))
    monkeypatch.setattr(both[1].module, "version", lambda: "torch 2.13.0")
    monkeypatch.setattr(measured, "objective", lambda arch, mode: Timed)
    monkeypatch.setitem(US, "attention", 5.0)
    best = f"attention_decode_{fastest}"
    monkeypatch.setattr(
        Timed, "race_kernels", lambda *_: KernelRaceResult(best, {"decision": "the faster one"})
    )
    workload = Workload.parse("decode_b2_h8_kv2_k512_d64_batchvariant")
    request = Request(workload, H200, True, both, Budget(trials=4))
    found = run.search(request, store.default_store())
    assert found.record is not None and found.record.kernel == best
    assert str(found.record.workload).endswith("_batchvariant")
    assert {each.kernel for each in found.finished} == {each.name for each in both}
