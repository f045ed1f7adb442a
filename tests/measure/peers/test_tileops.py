"""tunefa/measure/peers/tileops.py: what is asked of it. Its calls need a GPU."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from tunefa.measure import ops, peers, reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.backward_contest import TrueGradients, call_of
from tunefa.measure.gradients import gradients
from tunefa.measure.peer import Unserved
from tunefa.spec.workload import Workload


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("q64_fp32", "it has no fp32"),
        ("q64_d64_dv32", "its heads of Q and of V must be equally wide"),
        ("bwd_q64_varlen", "it has no gradients of packed sequences"),
        ("bwd_q64_k128", "it has gradients only where seqlen_q equals seqlen_k"),
        ("bwd_q64_causal_w16", "it has no sliding windows"),
        ("bwd_q64_softcap", "it has no soft-cap"),
    ],
)
def test_what_is_not_served_is_said_before_anything_is_imported(text: str, why: str) -> None:
    with pytest.raises(Unserved, match=why):
        peers.load("tileops").make(Workload.parse(text), ())


@pytest.mark.skipif(peers.load("tileops").why_absent() is None, reason="it is installed")
def test_where_it_is_not_installed_it_is_said() -> None:
    assert str(peers.load("tileops").why_absent()).endswith(": pip install tileops")


def operators_of_reference() -> ModuleType:
    """A module with TileOPs' names and layouts, (batch, seqlen, heads, head_dim), on any device."""

    class Operator:
        def __init__(self, is_causal: bool, **options: Any) -> None:
            assert options == {"window_size_left": -1, "window_size_right": -1, "softcap": None}
            self.is_causal = is_causal

        def inputs(self, *tensors: Tensor) -> AttentionInputs:
            assert all(each.is_contiguous() for each in tensors)
            q, k, v = (each.transpose(1, 2) for each in tensors)
            return AttentionInputs(q, k, v, self.is_causal, q.shape[-1] ** -0.5)

    class Forward(Operator):
        def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            out, lse = reference.attention(self.inputs(q, k, v))
            return out.transpose(1, 2).contiguous(), lse

    class Backward(Operator):
        def __call__(self, dout: Tensor, *saved: Tensor) -> tuple[Tensor, ...]:
            q, k, v, out, lse = saved
            assert out.is_contiguous()
            by_heads = out.transpose(1, 2), lse, dout.transpose(1, 2), torch.zeros_like(lse)
            made = gradients(self.inputs(q, k, v), *by_heads)
            return tuple(each.transpose(1, 2).contiguous() for each in made)

    module = ModuleType("tileops.attention")
    module.__dict__.update(GQADenseWithLSEFwdOp=Forward, GQADenseBwdOp=Backward)
    return module


@pytest.mark.parametrize("mask", ["full", "causal"])
def test_gradients_are_those_of_its_operators(monkeypatch: pytest.MonkeyPatch, mask: str) -> None:
    monkeypatch.setitem(sys.modules, "tileops.attention", operators_of_reference())
    workload = Workload.parse(f"bwd_b2_h4_kv2_q96_d32_bf16_{mask}")
    tensors = ops.of(workload).tensors(workload, "cpu", seed=0)
    found = call_of(peers.load("tileops"), workload, tensors)()
    assert TrueGradients.of(workload, tensors).verdict(found).why_wrong is None
