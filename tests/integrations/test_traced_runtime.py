"""tunefa's own calls under a trace."""

from __future__ import annotations

import torch

import tunefa
from tunefa.integrations.traced_runtime import observed
from tunefa.integrations.tracer import Tracer
from tunefa.runtime import process


def names(tracer: Tracer) -> dict[str, int]:
    found = tracer.found()
    return {str(each): calls.count for each, calls in found.workloads.items()}


def test_forward_gradients_and_caches_are_seen() -> None:
    tracer, before = Tracer(), process.current()
    q = torch.randn(2, 16, 4, 32, dtype=torch.bfloat16, requires_grad=True)
    x, counts = q.detach(), torch.full((2,), 9, dtype=torch.int32)
    starts = torch.tensor([0, 5, 16], dtype=torch.int32)
    right = tunefa.flash_attention(x, x, x, causal=True)
    with observed(tracer):
        assert torch.equal(tunefa.flash_attention(x, x, x, causal=True), right)
        torch.autograd.grad(tunefa.flash_attention(q, q, q, window=(3, 1)).sum(), q)
        tunefa.decode_attention(x[:, :1], x, x, counts)
        tunefa.flash_attention_varlen(x[0], x[0], x[0], starts, starts, 11, 11)
        pages, table = x.view(8, 4, 4, 32), torch.arange(8, dtype=torch.int32).view(2, 4)
        tunefa.flash_attention_varlen(
            x[0], pages, pages, starts, max_seqlen_q=11, block_table=table, seqlens_k=counts
        )
        assert tunefa.last_choice() is not None
    assert process.current() is before
    tunefa.flash_attention(x, x, x, causal=True)
    assert names(tracer) == {
        "fwd_b2_h4_kv4_q16_k16_d32_bf16_causal": 1,
        "fwd_b2_h4_kv4_q16_k16_d32_bf16_full_w4_a1": 1,
        "bwd_b2_h4_kv4_q16_k16_d32_bf16_full_w4_a1": 1,
        "decode_b2_h4_kv4_q1_k16_d32_bf16_causal": 1,
        "fwd_b2_h4_kv4_q16_k16_d32_bf16_full_varlen": 1,
        "prefill_b2_h4_kv4_q16_k16_d32_bf16_full_page4_varlen": 1,
    }


def test_what_is_no_workload_is_named() -> None:
    tracer = Tracer()
    x = torch.randn(1, 4, 2, 8, dtype=torch.float64)
    with observed(tracer):
        tunefa.flash_attention(x, x, x)
        starts, table = torch.tensor([0, 4]).int(), torch.zeros(1, 1).int()
        tunefa.flash_attention_varlen(
            x[0], x, x, starts, max_seqlen_q=4, block_table=table, seqlens_k=starts[1:]
        )
    dense, prompts = tracer.found().other
    assert dense.startswith("attention that is no workload: ") and "fp64" in dense
    assert prompts.startswith("attention of prompts over a cache that is no workload: ")
