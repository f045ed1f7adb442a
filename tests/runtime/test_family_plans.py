"""tunefa/runtime/family_plans.py: plans of calls that differ in batch and lengths only."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.dense_calls import sdpa
from tests.support.fake_kernel import DEFAULT, FakeLanguage
from tunefa.compile.contract import CompileError, LaunchSpec
from tunefa.runtime import planning
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.family_plans import FamilyPlans
from tunefa.runtime.kernel_plan import KernelPlan
from tunefa.runtime.process import Runtime
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.usefixtures("fresh")
OPTIONS = Options(True)


def tensors(rows: int, keys: int, batch: int = 2, dtype: torch.dtype = torch.float32) -> Tensors:
    """Four query heads and two KV heads."""
    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, 4), (keys, 2), (keys, 2)
    q, k, v = (torch.randn(batch, *each, 32, generator=generator).to(dtype) for each in shapes)
    return Tensors(q, k, v)


@pytest.fixture
def made_anew(monkeypatch: pytest.MonkeyPatch) -> list[Workload]:
    """The workloads whose plans are made without their family."""
    found: list[Workload] = []
    best_plan = planning.best_plan

    def recorded(job: Any, *rest: Any) -> Any:
        found.append(job.workload())
        return best_plan(job, *rest)

    monkeypatch.setattr(planning, "best_plan", recorded)
    return found


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_the_second_length_makes_a_family_known(
    fresh: Runtime, language: FakeLanguage, made_anew: list[Workload], layout: str
) -> None:
    options = OPTIONS._replace(layout=layout)
    for rows, keys, batch in ((16, 24, 2), (17, 24, 2), (17, 25, 2), (1, 70, 1), (90, 300, 3)):
        given = tensors(rows, keys, batch)
        q, k, v = given[:3]
        if layout == "bhsd":
            moved = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
            given = Tensors(moved[0], moved[1], moved[2])
        plan = fresh.plan(given, options)
        out, lse = plan.run(given, None)
        out = out if layout == "bshd" else out.transpose(1, 2)
        torch.testing.assert_close(out, sdpa(q, k, v, True))
        torch.testing.assert_close(plan.output(given, None), plan.run(given, None)[0])
        assert lse.shape == (batch, 4, rows)
        workload = plan.chosen.workload
        assert workload is not None
        assert (workload.batch, workload.seqlen_q, workload.seqlen_k) == (batch, rows, keys)
        assert plan.chosen.why.startswith("default: no result applies")
        assert fresh.plan(given, options) is plan
    assert [(each.seqlen_q, each.seqlen_k) for each in made_anew] == [(16, 24)]
    assert language.compiled == [(DEFAULT, True)]


def test_a_plan_is_that_which_is_made_anew(fresh: Runtime, language: FakeLanguage) -> None:
    given = tensors(16, 24), tensors(17, 24), tensors(40, 24)
    quick = [fresh.plan(each, OPTIONS) for each in given][-1]
    fresh._forget_plans()
    slow = fresh.plan(given[-1], OPTIONS)
    assert isinstance(quick, KernelPlan) and isinstance(slow, KernelPlan) and quick is not slow
    for name in ("chosen", "layout", "rows_contiguous", "out_like_q", "no_descales"):
        assert getattr(quick, name) == getattr(slow, name), name
    assert quick.launches.device == slow.launches.device


def test_a_scale_of_its_own_is_prepared_when_it_is_asked_for(
    fresh: Runtime, language: FakeLanguage
) -> None:
    for rows in (16, 17, 18):
        given = tensors(rows, 24)
        plan = fresh.plan(given, OPTIONS)
    out, _ = plan.run(given, 0.5)
    torch.testing.assert_close(out, sdpa(*given[:3], True, 0.5))


def test_a_binary_that_is_not_there_yet_is_compiled_as_for_a_first_call(
    fresh: Runtime, language: FakeLanguage, made_anew: list[Workload]
) -> None:
    for rows in (16, 17):
        fresh.plan(tensors(rows, 24), OPTIONS)
    compiler = fresh.planner.devices[torch.device("cpu")][1]
    compiler._compiled.clear()
    (family,) = (each.value for each in fresh._families._values.values())
    assert isinstance(family, FamilyPlans)
    family._binaries._known.clear()
    fresh.plan(tensors(18, 24), OPTIONS)
    fresh.plan(tensors(19, 24), OPTIONS)
    assert [each.seqlen_q for each in made_anew] == [16, 18] and len(language.compiled) == 2


def test_what_does_not_load_is_planned_anew(
    fresh: Runtime,
    language: FakeLanguage,
    made_anew: list[Workload],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rows in (16, 17):
        fresh.plan(tensors(rows, 24), OPTIONS)
    prepare = language.prepare
    failed: list[LaunchSpec] = []

    def fails_once(spec: LaunchSpec, *rest: Any) -> Any:
        if not failed:
            failed.append(spec)
            raise CompileError("the device lacks shared memory")
        return prepare(spec, *rest)

    monkeypatch.setattr(language, "prepare", fails_once)
    fresh.plan(tensors(18, 24), OPTIONS)
    assert len(failed) == 1 and [each.seqlen_q for each in made_anew] == [16, 18]


def test_what_its_kernel_cannot_read_is_planned_anew(
    fresh: Runtime,
    language: FakeLanguage,
    made_anew: list[Workload],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert fresh.planner.kernels is not None
    for rows in (16, 17):
        fresh.plan(tensors(rows, 24), OPTIONS)
    monkeypatch.setattr(fresh.planner.kernels[0].module, "is_aligned", lambda tensors: False)
    fresh.plan(tensors(18, 24), OPTIONS)
    assert [each.seqlen_q for each in made_anew] == [16, 18]
    assert language.compiled == [(DEFAULT, True), (DEFAULT, False)]


def test_loading_records_forgets_families(fresh: Runtime, language: FakeLanguage) -> None:
    for rows in (16, 17):
        fresh.plan(tensors(rows, 24), OPTIONS)
    assert len(fresh._families) == 1
    fresh.leave_out_libraries()
    assert len(fresh._families) == 0


def test_ten_thousand_lengths_leave_no_more_than_some(
    fresh: Runtime, language: FakeLanguage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here a twentieth of both. No length compiles, and plans stay within their bound."""
    monkeypatch.setattr(fresh._plans, "_size", 200)
    keys: Tensor = torch.randn(1, 700, 2, 32)
    q = torch.randn(1, 1, 4, 32)

    def run(lengths: range) -> None:
        for length in lengths:
            given = Tensors(q, keys[:, :length], keys[:, :length])
            fresh.plan(given, OPTIONS).output(given, None)

    run(range(100, 400))
    tracemalloc.start()
    run(range(400, 420))
    before, _ = tracemalloc.get_traced_memory()
    run(range(420, 640))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(fresh._plans) == 200 and language.compiled == [(DEFAULT, True)]
    assert after - before < 220 * 20_000  # plans that were made before counting were replaced
