"""tunefa/runtime/gradient_family.py: what decides a family of gradients, and its plans."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.support.gradient_calls import GradientCalls, made_anew, plan_of
from tests.support.hopper_on_cpu import hopper
from tunefa.measure.gradients import Gradients
from tunefa.runtime import backward
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.cells import Lengths
from tunefa.runtime.gradient_family import GradientCall, gradient_call, like
from tunefa.runtime.planner import Planner
from tunefa.runtime.resized_gradients import ResizedGradientPlan

CUDA, TWO_PASS = "attention_bwd_cuda_sm90", "attention_bwd_two_pass_gluon_sm90"


def asked(calls: GradientCalls, made: Any) -> GradientCall | None:
    return gradient_call(backward.key(made[0], calls.options, made[1]), calls.options)


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_lengths_do_not_decide_the_family(layout: str) -> None:
    calls = GradientCalls(layout=layout)
    first, other = asked(calls, calls.of(1, 70, 70)), asked(calls, calls.of(3, 64, 99, whole=True))
    assert first is not None and other is not None and first.family == other.family
    assert other.lengths == Lengths(3, 64, 99)
    tensors, given = calls.of(2, 64, 99)
    found = asked(calls, (tensors, given))
    assert found is not None
    heads = [x.transpose(1, 2) if layout == "bshd" else x for x in (*tensors[:3], given.out)]
    assert found.sizes[:4] == tuple((*x.shape, *x.stride()) for x in heads)
    assert found.sizes[4] == (*given.lse.shape, *given.lse.stride())
    assert found.sizes[6] == (*given.lse.shape, 0, 0, 0)


def test_gradients_are_as_dense_as_those_of_pytorch() -> None:
    chance = random.Random(0)
    whole = torch.empty(20_000)
    for _ in range(1000):
        shape = [*(chance.choice([1, 2, 3]) for _ in range(3)), 16]
        made = whole[: 4**3 * 16].view(4, 4, 4, 16)
        dense = chance.random() < 0.5
        made = torch.empty(shape) if dense else made[: shape[0], : shape[1], : shape[2]]
        made = made.permute(*chance.sample(range(3), 3), 3)
        if chance.random() < 0.3:  # the stride of an axis of one element says nothing
            pairs = zip(made.shape, made.stride(), strict=True)
            steps = [chance.choice([16, 48, 4096]) if n == 1 else step for n, step in pairs]
            made = whole.as_strided(made.shape, steps)
        expected = torch.empty_like(made)
        assert like((*made.shape, *made.stride())) == (*expected.shape, *expected.stride())


def test_what_decides_it() -> None:
    calls = GradientCalls()
    families = {
        found.family
        for found in (
            asked(calls, calls.of(1, 70, 70)),
            asked(calls, calls.of(1, 70, 70, dlse=True)),
            asked(GradientCalls(causal=False), calls.of(1, 70, 70)),
            asked(GradientCalls(heads_kv=4), GradientCalls(heads_kv=4).of(1, 70, 70)),
        )
        if found is not None
    }
    assert len(families) == 4


def test_calls_without_a_family() -> None:
    calls = GradientCalls()
    tensors, given = calls.of(1, 70, 70)
    odd = torch.empty(70 * 8 * 128 + 1, dtype=torch.bfloat16)[1:].view(1, 70, 8, 128)
    narrow = torch.empty(1, 70, 8, 136, dtype=torch.bfloat16)[..., :128]
    for grad in (odd, narrow):
        assert asked(calls, (tensors, given._replace(grad_out=grad))) is None
    options = Options(True, window_left=9)
    assert gradient_call(backward.key(tensors, options, given), options) is None
    small = torch.empty(1, 70, 2, 24, dtype=torch.bfloat16)
    made = Tensors(small, small, small), Gradients(small, given.lse[:, :2], small, None)
    assert asked(calls, made) is None


@pytest.mark.parametrize("kernel", [CUDA, pytest.param(TWO_PASS, marks=pytest.mark.slow)])
def test_new_lengths_are_not_planned_anew(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    runtime, _ = hopper(monkeypatch, kernel)
    calls, planned, plan = GradientCalls(causal=False), [], Planner.plan

    def recorded(self: Planner, job: Any) -> Any:
        planned.append(job)
        return plan(self, job)

    monkeypatch.setattr(Planner, "plan", recorded)
    for rows in range(100, 420):
        made = plan_of(runtime, calls, calls.of(1 + rows % 3, rows, rows))
        assert (rows < 102) or isinstance(made, ResizedGradientPlan) or len(planned) <= 9
    assert 2 < len(planned) <= 9, "one for each binary, and the calls before the family"


def test_the_choice_is_that_of_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where records of several kernels compete."""
    runtime, _ = hopper(monkeypatch, CUDA, TWO_PASS)
    calls, quick = GradientCalls(16, 16, most=2500), 0
    for rows in range(100, 2400, 61):
        made = calls.of(2, rows, rows)
        plan = plan_of(runtime, calls, made)
        assert plan.chosen == made_anew(runtime, calls, made).chosen
        quick += isinstance(plan, ResizedGradientPlan)
    assert quick > 20


def test_bundles_and_lock_files_have_no_family(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, _ = hopper(monkeypatch, CUDA)
    calls = GradientCalls()
    runtime.planner.bundles.files = (object(),)  # type: ignore[assignment]
    monkeypatch.setattr(type(runtime.planner.bundles), "plan", lambda *given: None)
    monkeypatch.setattr(type(runtime.planner.bundles), "tell", lambda *given: None)
    for rows in (100, 101, 102):
        plan = plan_of(runtime, calls, calls.of(1, rows, rows))
        assert not isinstance(plan, ResizedGradientPlan)
