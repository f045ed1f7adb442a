"""tunefa/runtime/planning.py: which configs are tried for a call, and for which tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.fake_kernel import DEFAULT, FakeKernel, on_cpu
from tests.support.planned_calls import TMA, WORKLOAD, call, plan_of, record
from tunefa.runtime import planning
from tunefa.spec.target import Case, Target
from tunefa.store.lookup import Choice


def test_a_default_that_was_found_is_tried_once() -> None:
    kernel: Any = FakeKernel()
    choice = Choice(kernel.name, dict(DEFAULT), "default", None)
    (only,) = planning.configs_to_try(choice, Case(kernel, WORKLOAD, Target.named("h200")), True)
    assert (only.config, only.how, only.why) == (DEFAULT, "default", choice.why)


def test_an_axis_of_one_may_have_any_stride(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch gives such an axis a stride of 0 where it is expanded: nothing is read twice."""
    q = torch.randn(2, 16, 8, 64).bfloat16()
    one = torch.randn(2, 1, 2, 64).bfloat16()
    step = one.as_strided(one.shape, (128, 0, 64, 1))
    made = call(q=q, k=step, v=step)
    with on_cpu(monkeypatch) as language:
        chosen = plan_of(made, language, record(TMA, "b2_h8_kv2_q16_k1_d64_bf16_causal")).chosen
    assert chosen.config == TMA and "aligned" not in chosen.why
