"""tunefa/runtime/gradient_plans.py: plans are kept by key, and the second call makes a family."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.gradient_calls import GradientCalls, plan_of
from tests.support.hopper_on_cpu import hopper
from tunefa.measure.gradients import Gradients
from tunefa.runtime.call import PACKED, Options, Tensors
from tunefa.runtime.resized_gradients import ResizedGradientPlan

CUDA = "attention_bwd_cuda_sm90"


def test_the_second_call_makes_the_family_known(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    calls = GradientCalls()
    found = [plan_of(runtime, calls, calls.of(1, rows, rows)) for rows in (200, 201, 202)]
    assert [isinstance(each, ResizedGradientPlan) for each in found] == [False, False, True]
    assert plan_of(runtime, calls, calls.of(1, 202, 202)) is found[-1]
    assert len(runtime._backward_plans) == 3


def test_nothing_is_kept_when_records_change(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    calls = GradientCalls()
    for rows in (200, 201, 202):
        plan_of(runtime, calls, calls.of(1, rows, rows))
    runtime.use_only([])
    assert len(runtime._backward_plans) == 0
    plan = plan_of(runtime, calls, calls.of(1, 203, 203))
    assert not isinstance(plan, ResizedGradientPlan), "the family is not known any more"


def test_what_computed_gradients_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    calls = GradientCalls()
    for rows in (200, 201, 202, 203):
        runtime.taken_backward(plan_of(runtime, calls, calls.of(1, rows, rows)))
    said = runtime.last_backward
    assert said is not None and said.workload is not None and said.kernel == CUDA
    assert (said.workload.seqlen_q, said.workload.op) == (203, "bwd") and said.why


def packed(keys: int) -> tuple[Tensors, Gradients]:
    """Two sequences of 100 queries, with so many keys in all."""
    q = torch.empty(200, 16, 128, dtype=torch.bfloat16)
    k = torch.empty(keys, 2, 128, dtype=torch.bfloat16)
    starts = [torch.tensor([0, n // 2, n], dtype=torch.int32) for n in (200, keys)]
    given = Gradients(torch.empty_like(q), torch.empty(16, 200), torch.empty_like(q), None)
    return Tensors(q, k, k.clone(), (starts[0], starts[1])), given


def test_plans_of_packed_calls_have_memory_for_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """CTAs that share a tile write their sums of dK and dV into it."""
    runtime, _ = hopper(monkeypatch, "attention_bwd_cuda_sm90")
    options = Options.of(True, None, PACKED, None, (128, 1024, False))
    plans: dict[int, Any] = {}
    for keys in (600, 1000, 2000):
        tensors, given = packed(keys)
        plans[keys] = runtime.backward_plan(tensors, options, given)
    splits = plans[600].chosen.config["GROUP_SPLITS"]
    assert splits > 1 and plans[600] is plans[1000], "both have room for 1,024 keys"
    of_keys = {keys: plan.launches.launch.scratch[-1][0][0] for keys, plan in plans.items()}
    # Two KV heads, each with the tiles of all keys and one of each sequence that is not full.
    assert of_keys[2000] >= 2 * splits * (2000 // 128 + 2) > of_keys[1000]
