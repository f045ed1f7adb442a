"""Fixtures for the runtime's tests."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from tunefa.measure import gradients as in_blocks
from tunefa.measure import reference
from tunefa.runtime import cuda_attention, planning
from tunefa.runtime.call import Call


@pytest.fixture
def flash_calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Lets PyTorch's FlashAttention serve the CPU, through the reference; its calls."""
    taken: list[Call] = []

    def attention(call: Call) -> Any:
        taken.append(call)
        return reference.attention(call)

    def gradients(call: Call, out: Tensor, lse: Tensor, grad: Tensor) -> Any:
        taken.append(call)
        return in_blocks.gradients(call, out, lse, grad)

    monkeypatch.setattr(cuda_attention, "flash_serves", lambda q, v, scale: True)
    monkeypatch.setattr(cuda_attention, "attention", attention)
    monkeypatch.setattr(cuda_attention, "gradients", gradients)
    return taken


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The jobs that were planned without a family."""
    found: list[Any] = []
    best_plan = planning.best_plan

    def recorded(job: Any, *rest: Any) -> Any:
        found.append(job)
        return best_plan(job, *rest)

    monkeypatch.setattr(planning, "best_plan", recorded)
    return found
