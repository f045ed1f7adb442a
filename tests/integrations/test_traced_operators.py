"""PyTorch's and flash-attn's operators under a trace, on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tunefa.integrations.traced_operators import OPERATORS, Operator, observed, workload
from tunefa.integrations.tracer import Tracer


def names(tracer: Tracer) -> dict[str, int]:
    found = tracer.found()
    counts = {str(each): calls.count for each, calls in found.workloads.items()}
    return {**counts, **{what: calls.count for what, calls in found.other.items()}}


def q_k_v() -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(2, heads, 16, 32, requires_grad=True) for heads in (4, 4, 4))
    return q, k, v


FWD, BWD = "fwd_b2_h4_kv4_q16_k16_d32_fp32_causal", "bwd_b2_h4_kv4_q16_k16_d32_fp32_causal"


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_pytorch_s_attention_eager_and_compiled() -> None:
    given, tracer = q_k_v(), Tracer()
    compile_: Any = torch.compile
    compiled = compile_(causal, backend="aot_eager", fullgraph=True)
    right = torch.autograd.grad(causal(*given).sum(), given)
    compiled(*given).sum().backward()
    with observed(tracer):
        found = torch.autograd.grad(causal(*given).sum(), given)
        torch.testing.assert_close(found, right)
        compiled(*given).sum().backward()
    causal(*given)
    assert names(tracer) == {FWD: 2, BWD: 2}


def test_masks_and_masks_aligned_to_the_top_left_are_no_workloads() -> None:
    (q, k, v), tracer = q_k_v(), Tracer()
    mask = torch.ones(16, 16, dtype=torch.bool)
    with observed(tracer), torch.no_grad():
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        causal(q[:, :, :8], k, v)
    assert names(tracer) == {
        "attention with a mask": 1,
        "attention with a causal mask that is aligned to the top left": 1,
    }


def test_packed_sequences(pytorch_calls: list[str]) -> None:
    from torch.nn.attention.varlen import varlen_attn

    tracer, q = Tracer(), torch.randn(16, 2, 16)
    starts = torch.tensor([0, 5, 16], dtype=torch.int32)
    with observed(tracer):
        varlen_attn(q, q, q, starts, starts, 11, 11, window_size=(3, 0))
    assert names(tracer) == {"fwd_b2_h2_kv2_q16_k16_d16_fp32_causal_w4_varlen": 1}
    assert pytorch_calls == ["_flash_attention_forward"]


@pytest.fixture
def flash_attn() -> Iterator[Any]:
    """An operator with the name and the arguments of flash-attn 2.8's."""
    make: Any = torch.library.Library
    library = make("flash_attn", "FRAGMENT")
    library.define(
        "_flash_attn_forward(Tensor q, Tensor k, Tensor v, float dropout_p, float softmax_scale, "
        "bool causal, int window_size_left, int window_size_right, float softcap, "
        "Tensor? alibi_slopes, bool return_softmax) -> Tensor"
    )
    library.impl("_flash_attn_forward", lambda q, *rest: q.clone(), "CPU")
    yield torch.ops.flash_attn._flash_attn_forward
    library._destroy()


def test_flash_attn_s_operators(flash_attn: Any) -> None:
    tracer, q = Tracer(), torch.randn(1, 64, 4, 32)
    with observed(tracer):
        flash_attn(q, q, q, 0.0, 0.1, True, 15, -1, 30.0, None, False)
        flash_attn(q, q, q, 0.1, 0.1, True, -1, -1, 0.0, None, False)
        flash_attn(q, q, q, 0.0, 0.1, False, -1, -1, 0.0, torch.ones(4), False)
    assert names(tracer) == {
        "fwd_b1_h4_kv4_q64_k64_d32_fp32_causal_w16_softcap": 1,
        "attention with dropout": 1,
        "attention with ALiBi": 1,
    }


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.name)
def test_each_operator_of_pytorch_has_the_arguments_that_are_read(operator: Operator) -> None:
    space, _, name = operator.name.partition("::")
    if space != "aten":
        pytest.skip("flash-attn is not installed")
    schema = getattr(getattr(torch.ops, space), name).default._schema
    known = {argument.name for argument in schema.arguments}
    x = torch.randn(2, 8, 8, 16, dtype=torch.bfloat16)
    given = {"query": x, "key": x, "value": x, "is_causal": True, "dropout_p": 0.0}
    assert given.keys() <= known
    op = "bwd" if operator.is_backward else "fwd"
    assert str(workload(operator, given)) == f"{op}_b2_h8_kv8_q8_k8_d16_bf16_causal"
