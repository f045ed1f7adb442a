"""tunefa/runtime/gradient_plans.py: plans are kept by key, and the second call makes a family."""

from __future__ import annotations

import pytest

from tests.support.gradient_calls import GradientCalls, plan_of
from tests.support.hopper_on_cpu import hopper
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
