"""tunefa/runtime/growth.py: which call is likely to come next, and that its plan is there."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from tests.support.hopper_on_cpu import hopper
from tunefa.compile.launch.driver import DriverError
from tunefa.errors import TunefaError
from tunefa.runtime import decode_call
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.decode_call import CacheOptions, CacheTensors
from tunefa.runtime.growth import Followed, Growth, NextPlans, following
from tunefa.runtime.plan_key import plan_key
from tunefa.runtime.process import Runtime
from tunefa.runtime.resized import ResizedPlan

BF16 = torch.bfloat16
OPTIONS = Options(True)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((1, (8, 2), "x"), (1, (9, 2), "x"), (1, (10, 2), "x")),
        ((5, (100, 1)), (4, (60, 1)), (3, (20, 1))),
        ((5, (100, 1)), (4, (50, 1)), None),  # 0 is no size
        ((1, 2), (1, 2), None),
        ((1, True), (2, False), None),
        ((1, "x"), (2, "y"), None),
        ((1, (2,)), (1, (2, 3)), None),
        ((1, None), (2, (3,)), None),
    ],
)
def test_numbers_go_on_as_they_did(before: Any, now: Any, expected: Any) -> None:
    assert following(before, now) == expected


def test_a_key_is_expected_once_growth_was_seen_twice() -> None:
    growth = Growth()
    found = [growth.after((each, "x")) for each in (7, 8, 9, 10, 12, 13, 14, 15, 15)]
    assert found == [None, None, (10, "x"), (11, "x"), None, None, (15, "x"), (16, "x"), None]


def grown(rows: int, batch: int = 2, whole: bool = False) -> Tensors:
    """Views of large tensors, or tensors of their own."""
    most = rows if whole else 900
    shapes = (8, 128), (2, 128), (2, 128)
    q, k, v = (torch.empty(batch, most, *each, dtype=BF16)[:, :rows] for each in shapes)
    return Tensors(q, k, v)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_the_plan_of_the_next_length_is_there(
    monkeypatch: pytest.MonkeyPatch, layout: str, whole: bool
) -> None:
    runtime, _ = hopper(monkeypatch, "attention_fwd_cuda_sm90")
    options = OPTIONS._replace(layout=layout)
    found = []
    for rows in range(300, 345):
        q, k, v = grown(rows, whole=whole)[:3]
        if layout == "bhsd":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            if whole:
                q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        given = Tensors(q, k, v)
        found.append(runtime._plans.get(plan_key(given, options)) is not None)
        plan = runtime.plan(given, options)
        workload = plan.chosen.workload
        assert workload is not None and workload.seqlen_k == rows
        plan.output(given, None)
    assert found[:5] == [False] * 5 and sum(found) >= 37
    assert len(runtime._plans) == 46


def test_lengths_that_do_not_grow_prepare_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, "attention_fwd_cuda_sm90")
    for rows in (300, 301, 302, 340, 310, 500, 501, 400, 700):
        given = grown(rows)
        runtime.plan(given, OPTIONS).output(given, None)
    assert len(runtime._plans) == 9


def test_a_plan_prepares_the_next_one_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, "attention_fwd_cuda_sm90")
    for rows in range(300, 310):
        given = grown(rows)
        runtime.plan(given, OPTIONS).output(given, None)
    plan = runtime.plan(given, OPTIONS)
    assert isinstance(plan, ResizedPlan) and plan.then is None
    expected = runtime.plan(grown(310), OPTIONS)
    assert isinstance(expected, ResizedPlan) and expected.then is not None


def cache(runtime: Runtime, keys: int) -> bool:
    """Runs a call over a cache of so many keys; returns whether its plan was there."""
    q, lengths = torch.empty(2, 1, 8, 128, dtype=BF16), torch.ones(2, dtype=torch.int32)
    kv = torch.empty(2, 900, 2, 128, dtype=BF16)[:, :keys]
    given = CacheTensors(q, kv, kv[:], lengths)
    key = decode_call.key(given, CacheOptions(), None)
    known = runtime.caches.plans.get(key) is not None
    runtime.caches.plan(given, CacheOptions(), None).output(given, None, None)
    return known


def test_so_it_is_over_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, "attention_decode_cuda_sm90")
    found = [cache(runtime, keys) for keys in range(300, 320)]
    assert found == [False] * 4 + [True] * 16
    assert not cache(runtime, 700)


def test_few_queries_too(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, "attention_decode_cuda_sm90")
    found = []
    for keys in range(1100, 1120):
        q, kv = torch.empty(2, 1, 8, 128, dtype=BF16), torch.empty(2, 1200, 2, 128, dtype=BF16)
        given = Tensors(q, kv[:, :keys], kv[:, :keys])
        found.append(runtime._plans.get(plan_key(given, Options())) is not None)
        runtime.plan(given, Options()).output(given, None)
    assert found == [False] * 4 + [True] * 16


@pytest.mark.parametrize(
    "error", [TunefaError("no kernel serves it"), DriverError(1, "cuTensorMapEncodeTiled", "no")]
)
def test_what_no_kernel_serves_and_a_thread_that_plans_are_left_alone(error: Exception) -> None:
    kept, lock = BoundedCache[Any](9), threading.RLock()
    asked: list[Any] = []

    def make(key: Any, options: Any) -> Any:
        asked.append(key)
        raise error

    plans, growth = NextPlans(kept, make, lock), Growth()

    def call(number: int) -> None:
        plan = Followed(growth)
        plans.watch((number,), None, plan)
        plan.proceed()
        assert plan.then is None
        plan.proceed()  # it is done once

    for number in (1, 2, 3):
        call(number)
    assert asked == [(4,)] and len(kept) == 0
    with lock:  # another thread does not wait for it
        other = threading.Thread(target=call, args=(4,))
        other.start()
        other.join()
    assert asked == [(4,)]
    plans.watch((1,), None, object())
