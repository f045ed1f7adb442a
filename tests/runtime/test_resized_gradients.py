"""tunefa/runtime/resized_gradients.py: plans of new lengths do what those do that are made anew."""

from __future__ import annotations

import gc
import tracemalloc
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.gradient_calls import Asked, GradientCalls, made_anew, plan_of, resized
from tests.support.hopper_on_cpu import hopper, seen
from tests.support.resizable_launch import start
from tunefa.compile.languages import cuda as language
from tunefa.compile.launch.lengths import GradientSizes
from tunefa.compile.launch.resizable import ResizableLaunch
from tunefa.compile.launch.steps import Steps
from tunefa.runtime.backward import launched
from tunefa.runtime.process import Runtime
from tunefa.runtime.resized import SHARED_CALLS
from tunefa.runtime.resized_gradients import ResizedGradientPlan, StepLaunches

CUDA = "attention_bwd_cuda_sm90"
TWO_PASS = "attention_bwd_two_pass_cuda_sm90"
OWN = ("attention_bwd_triton", "attention_bwd_two_pass_gluon_sm90")


def compare(
    runtime: Runtime, cuda: Any, calls: GradientCalls, plan: ResizedGradientPlan, asked: Asked
) -> None:
    """Compares what reaches the driver, and what is said, with a plan that is made anew."""
    slow = made_anew(runtime, calls, asked)
    assert plan.chosen == slow.chosen
    steps: Any = slow.launches.launch
    assert isinstance(steps, Steps)
    tensors, given = asked
    grads = [torch.empty_like(x) for x in tensors[:3]]
    sized = plan._sized
    assert tuple(steps.scratch) == sized.scratch
    memory = [torch.empty(shape, dtype=dtype) for shape, dtype in steps.scratch]
    made = [*launched(tensors[:3], given, grads), *memory]
    addresses = [*map(Tensor.data_ptr, made)]
    ours = plan._known[2].launches.launches
    bound = plan.own.launches.launch
    assert isinstance(bound, Steps) and bound.key == steps.key
    for launch, resizing, own in zip(ours, sized.resizings, steps.launches, strict=True):
        sizes = [each.size for each in own.parameters]
        expected = seen(cuda, sizes, partial(own, *made))
        got = seen(cuda, sizes, partial(start, launch, resizing, addresses))
        same(own, got, expected)


def same(launch: Any, got: Any, expected: Any) -> None:
    """Tables of equal contents may have two addresses."""
    for name in ("grid", "block", "smem_bytes", "stream", "attributes", "function"):
        assert getattr(got, name) == getattr(expected, name), name
    tables = {each.data_ptr() for each in launch.tables}
    for mine, other in zip(got.parameters, expected.parameters, strict=True):
        assert mine == other or (len(other) == 8 and int.from_bytes(other, "little") in tables)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dlse", [True, False])
def test_a_plan_of_new_lengths_is_the_one_that_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, causal: bool, layout: str, dlse: bool
) -> None:
    runtime, cuda = hopper(monkeypatch, CUDA)
    calls = GradientCalls(causal=causal, layout=layout)
    for plan, asked in resized(runtime, calls, 25, dlse=dlse):
        compare(runtime, cuda, calls, plan, asked)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", OWN)
@pytest.mark.parametrize("causal", [True, False])
def test_so_are_those_of_other_languages(
    monkeypatch: pytest.MonkeyPatch, causal: bool, kernel: str
) -> None:
    runtime, cuda = hopper(monkeypatch, kernel)
    calls = GradientCalls(causal=causal)
    for plan, asked in resized(runtime, calls, 25, seed=1):
        compare(runtime, cuda, calls, plan, asked)


@pytest.mark.parametrize(
    ("kernel", "head_dim"), [(TWO_PASS, 192), pytest.param(OWN[1], 128, marks=pytest.mark.slow)]
)
def test_families_of_other_heads_have_other_tables(
    monkeypatch: pytest.MonkeyPatch, kernel: str, head_dim: int
) -> None:
    """All families of a process share what is kept of tables, and ask for the same lengths."""
    runtime, cuda = hopper(monkeypatch, kernel)
    for heads, heads_kv in ((2, 2), (4, 4), (8, 2), (6, 3)):
        calls = GradientCalls(heads, heads_kv, head_dim=head_dim)
        for plan, asked in resized(runtime, calls, 8):
            compare(runtime, cuda, calls, plan, asked)


def test_a_call_starts_all_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, cuda = hopper(monkeypatch, CUDA)
    calls = GradientCalls()
    ((plan, (tensors, given)),) = resized(runtime, calls, 1)
    cuda.started.clear()
    for number in range(SHARED_CALLS + 3):
        grads = plan.gradients(tensors, given, None)
        for grad, x in zip(grads, tensors[:3], strict=True):
            like = torch.empty_like(x)
            assert (grad.shape, grad.stride(), grad.dtype) == (x.shape, like.stride(), x.dtype)
        assert (plan._own is None) is (number < SHARED_CALLS)
        assert len(cuda.started) == 3 * (number + 1)


@pytest.mark.parametrize(
    ("kernel", "head_dim", "early"),
    [(CUDA, 128, 0), (TWO_PASS, 192, 1), pytest.param(OWN[0], 128, 0, marks=pytest.mark.slow)],
)
def test_gradients_are_there_before_the_kernel_that_writes_them(
    monkeypatch: pytest.MonkeyPatch, kernel: str, head_dim: int, early: int
) -> None:
    runtime, _ = hopper(monkeypatch, kernel)
    calls = GradientCalls(2, 2, head_dim=head_dim)
    ((plan, (tensors, given)),) = resized(runtime, calls, 1)
    ours = plan._known[2].launches
    assert ours.early == early
    got: list[tuple[ResizableLaunch, tuple[int, ...]]] = []
    monkeypatch.setattr(
        ResizableLaunch, "start", lambda self, stream, written, at: got.append((self, at))
    )
    for scale in (None, 0.5):
        got.clear()
        grads = plan.gradients(tensors, given, scale)
        right = [*map(Tensor.data_ptr, launched(tensors[:3], given, grads))]
        assert len(got) == len(ours.launches)
        for number, (launch, addresses) in enumerate(got):
            there = 7 + early if number == 0 else 10
            assert [*addresses[:10]] == right[:there] + [0] * (10 - there)
            assert all(addresses[each] for each in launch.tensors), "it gets no tensor too early"


def test_a_graph_gets_launches_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, cuda = hopper(monkeypatch, CUDA)
    ((plan, (tensors, given)),) = resized(runtime, GradientCalls(), 1)
    cuda.capturing = True
    plan.gradients(tensors, given, None)
    own: Any = plan.own.launches.launch
    assert plan._calls == 0 and all(each._immortal for each in own.launches)


def test_a_scale_is_prepared_once_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    prepared: list[float] = []
    prepare = language.prepare

    def recorded(spec: Any, *rest: Any) -> Any:
        prepared.append(spec.scale)
        return prepare(spec, *rest)

    monkeypatch.setattr(language, "prepare", recorded)
    made = resized(runtime, GradientCalls(causal=False), 8)
    binaries = {id(plan._known[2]) for plan, _ in made}
    prepared.clear()
    for plan, (tensors, given) in made:
        for scale in (None, 128**-0.5, 0.5, 2.0):
            plan.gradients(tensors, given, scale)
    assert len(prepared) == 2 * len(binaries) and {*prepared} == {0.5, 2.0}
    for _ in range(SHARED_CALLS):
        plan.gradients(tensors, given, 0.5)
    assert len(prepared) == 2 * len(binaries), "later calls have launches of their own"
    own: Any = plan.own.launches
    assert own._scales.get(0.5).key != own.launch.key


def test_what_does_something_else_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    calls = GradientCalls()
    ((plan, asked),) = resized(runtime, calls, 1)
    slow: Any = made_anew(runtime, calls, asked)
    launch, lengths = slow.launches.launch, plan._known[1]
    sizes = GradientSizes(*plan._asked, (*plan._sizes,), plan._facts.default_scale)
    assert StepLaunches.of(launch, lengths, sizes) is not None
    assert StepLaunches.of(launch.launches[0], lengths, sizes) is None
    for other in (sizes._replace(keys=9 * sizes.keys), sizes._replace(scale=0.5)):
        assert StepLaunches.of(launch, lengths, other) is None


def test_ten_thousand_lengths_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a twentieth of both."""
    runtime, cuda = hopper(monkeypatch, CUDA)
    runtime._backward_plans._size = 100
    calls = GradientCalls()

    def run(lengths: range) -> int:
        for rows in lengths:
            asked = calls.of(1, rows, rows)
            plan_of(runtime, calls, asked).gradients(*asked, None)
            cuda.started.clear()
            cuda.encoded.clear()
        gc.collect()  # Python keeps thousands of tuples that were freed
        return tracemalloc.get_traced_memory()[0]

    run(range(100, 250))
    tracemalloc.start()
    try:
        before = run(range(250, 400))
        after = run(range(400, 650))
    finally:
        tracemalloc.stop()
    assert len(runtime._backward_plans) <= 100
    assert after - before < 250 * 500
