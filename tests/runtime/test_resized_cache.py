"""tunefa/runtime/resized_cache.py: what calls of new sizes start, without a device."""

from __future__ import annotations

import random
import tracemalloc
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.cache_families import CacheCalls, made_anew
from tests.support.hopper_on_cpu import hopper, seen
from tests.support.other_defaults import changed
from tests.support.resizable_launch import start
from tunefa.compile.languages import cuda as language
from tunefa.compile.launch.steps import Steps
from tunefa.runtime.decode_call import CacheOptions, CacheTensors
from tunefa.runtime.process import Runtime
from tunefa.runtime.resized import SHARED_CALLS
from tunefa.runtime.resized_cache import CacheLaunches, ResizedCachePlan, sized

CUDA = "attention_decode_cuda_sm90"
CALLS = CacheCalls(page_size=64, sinks=True)
both = pytest.mark.parametrize("launches", [2, 1], ids=["a second kernel", "the last CTA"])
"""Each way to combine splits, with the launches of a call."""


def combining(monkeypatch: pytest.MonkeyPatch, launches: int) -> tuple[Runtime, Any]:
    """A runtime whose calls have so many launches, and its driver."""
    runtime, cuda = hopper(monkeypatch, CUDA)
    runtime.planner.kernels = (changed(CUDA, LAST_CTA_COMBINES=2 - launches),)
    return runtime, cuda


def plans(runtime: Runtime, count: int, seed: int = 0) -> list[tuple[Any, CacheTensors]]:
    """So many plans that follow sizes, with tensors of their calls."""
    chance, found = random.Random(seed), list[tuple[Any, CacheTensors]]()
    while len(found) < count:
        given = CALLS.call(chance)
        plan = runtime.caches.plan(given, CALLS.options, None)
        if isinstance(plan, ResizedCachePlan):
            found.append((plan, given))
    return found


def given_to_kernels(plan: ResizedCachePlan, given: CacheTensors) -> tuple[list[Tensor], Steps]:
    """All tensors of a call, with memory for splits, and launches for its sizes alone."""
    steps: Any = plan.own.launches.launch
    assert isinstance(steps, Steps)
    q, k, v, *others = (each for each in given if each is not None)
    scratch = [torch.empty(shape, dtype=dtype) for shape, dtype in steps.scratch]
    out, lse = torch.empty_like(q), torch.empty(1)
    return [q, k, v, out, lse, *others, *scratch], steps


@both
def test_the_driver_gets_what_launches_of_these_sizes_give_it(
    monkeypatch: pytest.MonkeyPatch, launches: int
) -> None:
    runtime, cuda = combining(monkeypatch, launches)
    for plan, given in plans(runtime, 30):
        tensors, steps = given_to_kernels(plan, given)
        addresses = [*map(Tensor.data_ptr, tensors)]
        ours: Any = plan._owner.launches.launches
        theirs: Any = steps.launches
        _, resizings = sized(plan._owner.launches.lengths, plan._sizes)
        assert len(ours) == launches
        for launch, resizing, own in zip(ours, resizings, theirs, strict=True):
            sizes = [each.size for each in own.parameters]
            expected = seen(cuda, sizes, partial(own, *tensors))
            assert seen(cuda, sizes, partial(start, launch, resizing, addresses)) == expected


@both
def test_a_call_starts_its_kernels(monkeypatch: pytest.MonkeyPatch, launches: int) -> None:
    runtime, cuda = combining(monkeypatch, launches)
    ((plan, given),) = plans(runtime, 1)
    for number in range(SHARED_CALLS + 3):
        out, lse = plan.run(given, None, None)
        batch, rows, heads, head_dim = given.q.shape
        assert out.shape == (batch, rows, heads, head_dim) and out.dtype == given.q.dtype
        assert lse.shape == (batch, heads, rows) and lse.dtype == torch.float32
        assert (plan._own is None) is (number < SHARED_CALLS)
        assert len(cuda.started) == launches * (number + 1)
    kept = torch.empty_like(given.q)
    assert plan.run(given, None, kept)[0] is kept


@both
def test_a_graph_gets_launches_of_its_own(monkeypatch: pytest.MonkeyPatch, launches: int) -> None:
    runtime, cuda = combining(monkeypatch, launches)
    ((plan, given),) = plans(runtime, 1)
    cuda.capturing = True
    plan.run(given, None, None)
    assert plan._own is not None and len(cuda.started) == launches


@both
def test_a_scale_is_prepared_once_for_all_sizes(
    monkeypatch: pytest.MonkeyPatch, launches: int
) -> None:
    runtime, _ = combining(monkeypatch, launches)
    prepared: list[float] = []
    prepare = language.prepare

    def recorded(spec: Any, *rest: Any) -> Any:
        prepared.append(spec.scale)
        return prepare(spec, *rest)

    monkeypatch.setattr(language, "prepare", recorded)
    made = plans(runtime, 5)
    prepared.clear()
    for plan, given in made:
        for scale in (None, 128**-0.5, 0.5, 2.0):
            plan.run(given, scale, None)
    assert prepared == [0.5, 2.0]
    usual, other = (plan._owner.launches, plan._owner.of_scale(0.5, plan._sizes, tuple))
    assert usual.bound(plan._sizes).key != other.bound(plan._sizes).key
    for _ in range(SHARED_CALLS):
        plan.run(given, 0.5, None)
    assert prepared == [0.5, 2.0], "later calls have a launch of their own"


def test_a_scale_is_prepared_with_any_stride_of_a_single_sequence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The output is made like q, whose batch stride does not count."""
    runtime, cuda = hopper(monkeypatch, CUDA)
    plans(runtime, 1)
    given = CALLS.call(random.Random(0))
    assert given.block_table is not None
    alone = given._replace(
        q=torch.empty(1, 8, 8, 128, dtype=torch.bfloat16)[:, :1],
        seqlens=given.seqlens[:1],
        block_table=given.block_table[:1],
    )
    assert alone.q.is_contiguous() and alone.q.stride(0) == 8 * 8 * 128
    plan = runtime.caches.plan(alone, CALLS.options, None)
    assert isinstance(plan, ResizedCachePlan)
    started = len(cuda.started)
    for scale in (0.5, 0.5, 2.0):
        plan.run(alone, scale, None)
    assert len(cuda.started) == started + 6


def test_what_does_something_else_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    ((plan, given),) = plans(runtime, 1)
    slow: Any = made_anew(runtime, given, CALLS.options)
    launch, sizes, lengths = slow.launches.launch, plan._sizes, plan._owner.launches.lengths
    count = 5 + sum(each is not None for each in given[3:])
    assert CacheLaunches.of(lengths, launch, sizes, count) is not None
    assert CacheLaunches.of(lengths, launch.launches[0], sizes, count) is None
    first_alone = Steps(launch.launches[:1], launch.scratch)
    assert CacheLaunches.of(lengths, first_alone, sizes, count) is None
    for other in (sizes._replace(keys=9 * sizes.keys), sizes._replace(table_row=1)):
        assert CacheLaunches.of(lengths, launch, other, count) is None


def test_thousands_of_sizes_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, cuda = hopper(monkeypatch, CUDA)
    q, lengths = torch.empty(1, 1, 8, 128, dtype=torch.bfloat16), torch.ones(1, dtype=torch.int32)
    cache = torch.empty(1, 4_400, 2, 128, dtype=torch.bfloat16)
    runtime.caches.plans._size = 500

    def run(sizes: range) -> int:
        for keys in sizes:
            given = CacheTensors(q, cache[:, :keys], cache[:, :keys], lengths)
            runtime.caches.plan(given, CacheOptions(), None).run(given, None, None)
            cuda.started.clear()
            cuda.encoded.clear()
        return tracemalloc.get_traced_memory()[0]

    run(range(100, 105))
    tracemalloc.start()
    try:
        before = run(range(105, 1100))
        after = run(range(1100, 4_100))
    finally:
        tracemalloc.stop()
    assert len(runtime.caches.plans) <= 500
    ((_, compiler),) = runtime.planner.devices.values()
    assert len(compiler) == 1
    assert after - before < 66_000
