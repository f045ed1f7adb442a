"""tunefa/runtime/resized.py: plans of new lengths do what those do that are made anew."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import pytest
import torch

from tests.support.hopper_on_cpu import hopper, seen
from tests.support.resizable_launch import start
from tunefa.compile.launch.prepared import PreparedLaunch
from tunefa.runtime import family_plans, planning
from tunefa.runtime import plan as plans
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.family_plans import FamilyPlans
from tunefa.runtime.kernel_plan import KernelPlan
from tunefa.runtime.process import Runtime
from tunefa.runtime.resized import SHARED_CALLS, ResizedPlan

CUDA = "attention_fwd_cuda_sm90"
OWN = ("attention_fwd_triton", "attention_fwd_gluon_sm90")
MOST = 1200


class Calls:
    """Calls of one family on views of a few large tensors."""

    def __init__(self, heads: int, heads_kv: int, causal: bool, layout: str = "bshd") -> None:
        kind = torch.bfloat16
        self.q = torch.empty(4, MOST, heads, 128, dtype=kind)
        self.k, self.v = (torch.empty(4, MOST, heads_kv, 128, dtype=kind) for _ in range(2))
        self.options = Options(causal, layout=layout)

    def of(self, batch: int, rows: int, keys: int, contiguous: bool = False) -> Tensors:
        q, k, v = self.q[:batch, :rows], self.k[:batch, :keys], self.v[:batch, :keys]
        if self.options.layout == "bhsd":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return Tensors(q.contiguous(), k, v) if contiguous else Tensors(q, k, v)

    def random(self, chance: random.Random) -> Tensors:
        keys = chance.choice([1, 64, 128]) * chance.randint(1, 9) + chance.choice([0, 3])
        rows = max(64, chance.choice([keys, chance.randint(1, keys)]))
        return self.of(chance.randint(1, 4), rows, keys, chance.random() < 0.5)


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that were planned or prepared without a launch that follows the lengths."""
    found: list[Any] = []
    for owner, name in ((planning, "best_plan"), (FamilyPlans, "_anew")):
        whole = getattr(owner, name)

        def recorded(*given: Any, whole: Any = whole) -> Any:
            found.append(given)
            return whole(*given)

        monkeypatch.setattr(owner, name, recorded)
    return found


def made_anew(runtime: Runtime, given: Tensors, options: Options) -> KernelPlan:
    job = plans.Forward(Call.of(given, options, None))
    made = runtime.planner.plan(job)
    assert isinstance(made, KernelPlan)
    return made


def compare(runtime: Runtime, cuda: Any, given: Tensors, options: Options) -> bool:
    """Compares what reaches the driver; returns whether the plan was one of new lengths."""
    quick = runtime.plan(given, options)
    if not isinstance(quick, ResizedPlan):
        return False
    slow = made_anew(runtime, given, options)
    assert quick.chosen == slow.chosen
    launch = slow.launches.launch
    assert isinstance(launch, PreparedLaunch)
    out, lse = torch.empty_like(given.q), torch.empty(1)
    tensors = (*given[:3], out, lse)
    sizes = [each.size for each in launch.parameters]
    expected = seen(cuda, sizes, lambda: launch(*tensors))
    addresses = [*map(torch.Tensor.data_ptr, tensors)]
    got = seen(cuda, sizes, lambda: start(quick._binary.launch, quick._resizing, addresses))
    _same(launch, got, expected)
    bound = quick.own.launches.launch
    assert isinstance(bound, PreparedLaunch) and bound.key == launch.key
    assert quick.own.out_like_q == (given.q.is_contiguous())
    return True


def _same(launch: PreparedLaunch, got: Any, expected: Any) -> None:
    """Tables of equal contents may have two addresses."""
    for name in ("grid", "block", "smem_bytes", "stream", "attributes", "function"):
        assert getattr(got, name) == getattr(expected, name), name
    tables = {each.data_ptr() for each in launch.tables}
    for mine, other in zip(got.parameters, expected.parameters, strict=True):
        is_table = len(other) == 8 and int.from_bytes(other, "little") in tables
        assert mine == other or is_table


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_plan_of_new_lengths_is_the_one_that_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, causal: bool, layout: str
) -> None:
    runtime, cuda = hopper(monkeypatch, CUDA)
    calls, chance = Calls(8, 2, causal, layout), random.Random(1)
    quick = sum(compare(runtime, cuda, calls.random(chance), calls.options) for _ in range(250))
    assert quick > 200


@pytest.mark.parametrize("causal", [True, False])
def test_families_of_other_heads_have_other_tables(
    monkeypatch: pytest.MonkeyPatch, causal: bool
) -> None:
    """All families of a process share what is kept of tables, and ask for the same lengths."""
    runtime, cuda = hopper(monkeypatch, CUDA)
    for heads, heads_kv in ((2, 2), (4, 4), (8, 2), (6, 3)):
        calls, chance = Calls(heads, heads_kv, causal), random.Random(1)
        assert any([compare(runtime, cuda, calls.random(chance), calls.options) for _ in range(40)])


@pytest.mark.slow
@pytest.mark.parametrize("kernel", OWN)
@pytest.mark.parametrize("causal", [True, False])
def test_so_are_those_of_other_languages(
    monkeypatch: pytest.MonkeyPatch, causal: bool, kernel: str
) -> None:
    runtime, cuda = hopper(monkeypatch, kernel)
    calls, chance = Calls(8, 2, causal), random.Random(2)
    quick = sum(compare(runtime, cuda, calls.random(chance), calls.options) for _ in range(120))
    assert quick > 60


def test_after_the_first_calls_nothing_is_prepared(
    monkeypatch: pytest.MonkeyPatch, anew: list[Any]
) -> None:
    runtime, cuda = hopper(monkeypatch, CUDA)
    calls = Calls(8, 8, True)
    for rows in range(200, 1200):
        given = calls.of(1, rows, rows)
        cuda.sizes = []
        runtime.plan(given, calls.options).output(given, None)
        if rows == 203:
            assert 1 <= len(anew) <= 3
            anew.clear()
    assert anew == []


def test_last_choice_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    calls = Calls(8, 8, True)
    for rows in (300, 301, 302, 303):
        given = calls.of(1, rows, rows)
        plan = runtime.plan(given, calls.options)
        runtime._last.plan = plan
    assert isinstance(plan, ResizedPlan)
    said = runtime.last
    assert said is not None and said == made_anew(runtime, given, calls.options).chosen
    assert said.workload is not None and said.workload.seqlen_q == 303
    assert said.why.startswith("default: no result applies")


def test_ten_thousand_lengths_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a tenth of both."""
    runtime, cuda = hopper(monkeypatch, CUDA)
    monkeypatch.setattr(runtime._plans, "_size", 200)
    calls = Calls(8, 8, True)

    def run(lengths: range) -> None:
        for rows in lengths:
            given = calls.of(1, rows, rows)
            runtime.plan(given, calls.options).output(given, None)
            cuda.started.clear()
            cuda.encoded.clear()

    run(range(100, 500))
    tracemalloc.start()
    run(range(500, 700))
    before, _ = tracemalloc.get_traced_memory()
    run(range(700, 1200))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(runtime._plans) <= 200
    assert after - before < 500 * 1000


def test_lengths_that_return_have_a_launch_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    calls = Calls(8, 8, True)
    for rows in (300, 301, 302):
        given = calls.of(1, rows, rows)
        plan = runtime.plan(given, calls.options)
        plan.output(given, None)
    assert isinstance(plan, ResizedPlan)
    for _ in range(SHARED_CALLS - 1):
        assert plan.run(given, None)[1].shape == (1, 8, 302) and plan._own is None
    assert plan.run(given, None)[1].shape == (1, 8, 302)
    assert plan._own is not None and runtime.plan(given, calls.options) is plan


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_results_of_the_first_calls_are_laid_out_as_those_of_later_ones(
    monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """With one batch q may have any stride of batches, and `out` has it too."""
    runtime, _ = hopper(monkeypatch, CUDA)
    calls = Calls(8, 8, True, layout)
    for batch in (1, 2):
        for rows in (300, 301, 302):
            given = calls.of(batch, rows, rows)
            plan = runtime.plan(given, calls.options)
        assert isinstance(plan, ResizedPlan)
        first, later = plan.run(given, None), plan.own.run(given, None)
        for mine, other in zip(first, later, strict=True):
            assert (mine.shape, mine.stride()) == (other.shape, other.stride())
            assert (mine.dtype, mine.device) == (other.dtype, other.device)
        assert plan.output(given, None).stride() == first[0].stride()


def test_a_captured_call_has_a_launch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph keeps what its launches point to."""
    runtime, cuda = hopper(monkeypatch, CUDA)
    calls = Calls(8, 8, True)
    for rows in (300, 301, 302):
        given = calls.of(1, rows, rows)
        plan = runtime.plan(given, calls.options)
    cuda.capturing = True
    assert isinstance(plan, ResizedPlan) and plan._calls == 0
    plan.output(given, None)
    own: Any = plan.own.launches.launch
    assert own._immortal


def test_another_scale_is_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    calls = Calls(8, 8, True)
    for rows in (300, 301, 302):
        given = calls.of(1, rows, rows)
        plan = runtime.plan(given, calls.options)
    assert isinstance(plan, ResizedPlan)
    plan.output(given, 128**-0.5)
    assert plan._own is None  # that is the default
    plan.output(given, 0.5)
    assert len(plan.own.launches._scales) == 1


def test_what_a_call_with_growing_lengths_needs_is_prepared_by_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    calls, learned = Calls(8, 8, True), list[Any]()
    for rows in (300, 301, 302, 303, 304, 305):
        given = calls.of(1, rows, rows)
        plan = runtime.plan(given, calls.options)
        if rows == 305:
            assert learned == [], "304 is the last length of its cell"
        plan.output(given, None)
        monkeypatch.setattr(FamilyPlans, "_learn", _recorded(learned))
        if rows == 303:
            learned.clear()
        if rows == 304:
            assert [each[1:] for each in learned] == [(305, 305)]
            learned.clear()


_learn = family_plans.FamilyPlans._learn


def _recorded(found: list[Any]) -> Any:
    def recorded(self: Any, asked: Any) -> bool:
        found.append(asked)
        return _learn(self, asked)

    return recorded
