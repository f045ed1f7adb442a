"""tunefa/runtime/family_facts.py: plans stay when their family is dropped, and do not hold it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.gradient_calls import Asked, GradientCalls, plan_of
from tests.support.hopper_on_cpu import hopper
from tunefa.runtime import gradient_plans, process
from tunefa.runtime.family import Family
from tunefa.runtime.process import Runtime
from tunefa.runtime.resized import ResizedPlan
from tunefa.runtime.resized_gradients import ResizedGradientPlan
from tunefa.spec.family_space import FamilySpace

Made = Callable[[Runtime, GradientCalls, Asked], Any]


def forward_plan(runtime: Runtime, calls: GradientCalls, asked: Asked) -> Any:
    return runtime.plan(asked[0], calls.options)


def alive(kind: type) -> int:
    """The number of objects of a class that are left."""
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.fixture
def one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the family that was made last is kept."""
    monkeypatch.setattr(process, "MAX_FAMILIES", 1)
    monkeypatch.setattr(gradient_plans, "MAX_FAMILIES", 1)


@pytest.mark.usefixtures("one_family")
@pytest.mark.parametrize(
    ("kernel", "made", "kind"),
    [
        ("attention_fwd_cuda_sm90", forward_plan, ResizedPlan),
        ("attention_bwd_cuda_sm90", plan_of, ResizedGradientPlan),
    ],
)
def test_plans_do_not_hold_their_family(
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    made: Made,
    kind: type[ResizedPlan | ResizedGradientPlan],
) -> None:
    runtime, _ = hopper(monkeypatch, kernel)
    before = alive(Family), alive(FamilySpace)
    plans: dict[int, list[Any]] = {}
    for heads in range(2, 8):
        calls = GradientCalls(heads, 1)
        asked = [calls.of(1, rows, rows) for rows in (200, 201, 202, 203)]
        plans[heads] = [made(runtime, calls, each) for each in asked]
    assert alive(Family) <= before[0] + 1 and alive(FamilySpace) <= before[1] + 1
    for heads, found in plans.items():
        resized = [each for each in found if isinstance(each, kind)]
        assert resized
        for plan in resized:
            chosen: Any = plan.chosen
            assert chosen.workload.heads == heads and chosen.kernel == kernel and chosen.why


def test_a_dropped_familys_plan_prepares_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_plans, "MAX_FAMILIES", 1)
    before = alive(Family)
    runtime, cuda = hopper(monkeypatch, "attention_bwd_cuda_sm90")
    calls = GradientCalls(4, 2)
    asked = [calls.of(1, rows, rows) for rows in (200, 201, 202)]
    plan = [plan_of(runtime, calls, each) for each in asked][-1]
    other = GradientCalls(6, 2)
    for rows in (200, 201):
        plan_of(runtime, other, other.of(1, rows, rows))
    assert alive(Family) <= before + 1
    cuda.started.clear()
    plan.gradients(*asked[-1], 0.3)
    assert len(cuda.started) == 3, "preprocess, main and postprocess"
