"""flash-attn-4's functions, beside fp64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support import paged_calls
from tests.support.exact_attention import close, exact
from tunefa.integrations.compat import flash_attn4

fa4: Any = flash_attn4  # its results have several types


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


@pytest.mark.parametrize("causal", [False, True])
def test_dense_with_everything(causal: bool) -> None:
    q, k, v = normal(2, 7, 4, 16), normal(2, 11, 2, 16), normal(2, 11, 2, 16)
    sinks = normal(4)
    sides = (3, None) if causal else (3, 2)
    out, lse = fa4.flash_attn_func(
        *(q, k, v, None, None, 0.3, causal, sides, sinks, 2.0, 1, True), return_lse=True
    )
    right, right_lse = exact(
        q, k, v, causal, (3, 2 if not causal else -1), scale=0.3, softcap=2.0, sinks=sinks
    )
    close((out, lse), (right, right_lse))
    given = q, k, v, sinks
    close(
        torch.autograd.grad(out.cos().sum(), given),
        torch.autograd.grad(right.cos().sum(), given),
    )
    assert fa4.flash_attn_func(q, k, v)[1] is None


def test_packed_sequences_need_no_longest() -> None:
    q, k, v = normal(8, 4, 16), normal(8, 2, 16), normal(8, 2, 16)
    starts = torch.tensor([0, 5, 8], dtype=torch.int32)
    named: dict[str, Any] = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "causal": True}
    out, lse = fa4.flash_attn_varlen_func(q, k, v, **named, return_lse=True)
    made = [exact(q[None, p], k[None, p], v[None, p], True) for p in (slice(0, 5), slice(5, 8))]
    close(out, torch.cat([one[0] for one, _ in made]))
    close(lse, torch.cat([one[0] for _, one in made], 1))
    same, _ = fa4.flash_attn_varlen_func(q, k, v, **named, max_seqlen_q=5, max_seqlen_k=5)
    close(same, out)
    with pytest.raises(tunefa.TunefaError, match="one of cu_seqlens_q and cu_seqlens_k"):
        fa4.flash_attn_varlen_func(q, k, v, cu_seqlens_q=starts)


def test_a_cache_by_seqused_k() -> None:
    counts = torch.tensor([5, 9], dtype=torch.int32)
    q, k = torch.randn(2, 1, 4, 16), torch.randn(2, 16, 2, 16)
    sinks = torch.randn(4)
    out, lse = fa4.flash_attn_varlen_func(
        q, k, k, seqused_k=counts, learnable_sink=sinks, window_size=(3, None), return_lse=True
    )
    for i, count in enumerate(counts.tolist()):
        keys = k[i : i + 1, :count]
        right, right_lse = exact(q[i : i + 1], keys, keys, True, (3, -1), sinks=sinks)
        close(out[i], right[0])
        assert lse is not None
        close(lse[i], right_lse[0])
    dense, _ = fa4.flash_attn_varlen_func(q, k, k)
    close(dense, exact(q, k, k)[0])


def test_packed_queries_over_pages() -> None:
    given = paged_calls.made(page_size=4)
    sinks = torch.randn(paged_calls.HEADS)
    named = {
        "cu_seqlens_q": given["cu_seqlens_q"],
        "seqused_k": given["seqlens_k"],
        "page_table": given["block_table"],
    }
    inputs = given["q"], given["k"], given["v"]
    out, lse = fa4.flash_attn_varlen_func(
        *inputs, **named, causal=True, window_size=(3, None), return_lse=True
    )
    right, right_lse = paged_calls.expected(given, 3, 0)
    count = len(right)
    torch.testing.assert_close(out[:count], right)
    torch.testing.assert_close(lse[:, :count], right_lse)
    with_sinks, _ = fa4.flash_attn_varlen_func(
        *inputs, **named, max_seqlen_q=12, max_seqlen_k=33, learnable_sink=sinks.requires_grad_()
    )
    right, right_lse = paged_calls.expected(given, None, None)
    kept = (right_lse - sinks.detach().double()[:, None]).sigmoid().T[..., None]
    torch.testing.assert_close(with_sinks[:count], right * kept)
    with pytest.raises(tunefa.TunefaError, match="seqused_k is missing: with page_table"):
        fa4.flash_attn_varlen_func(*inputs, **{**named, "seqused_k": None})


def test_packed_queries_over_a_cache_without_pages() -> None:
    q, k, v = torch.randn(6, 4, 16), torch.randn(2, 9, 2, 16), torch.randn(2, 9, 2, 16)
    starts, counts = torch.tensor([0, 4, 6], dtype=torch.int32), torch.tensor([5, 9]).int()
    out, _ = fa4.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=starts, seqused_k=counts, causal=True, deterministic=True
    )
    for rows, i, count in ((slice(0, 4), 0, 5), (slice(4, 6), 1, 9)):
        right, _ = exact(q[None, rows], k[i : i + 1, :count], v[i : i + 1, :count], True)
        close(out[rows], right[0])


@pytest.mark.parametrize("name", ["qv", "gather_kv_indices", "mask_mod", "block_sparse_tensors"])
def test_what_tunefa_has_not_is_named(name: str) -> None:
    q = torch.randn(1, 4, 4, 16)
    for function in (fa4.flash_attn_func, fa4.flash_attn_varlen_func):
        named: dict[str, Any] = {name: torch.ones(2)}
        with pytest.raises(tunefa.TunefaError, match=f"{name} of flash_attn_.*tunefa has none"):
            function(q, q, q, **named)


def test_unused_arguments_are_taken_and_unknown_ones_are_not() -> None:
    q = torch.randn(1, 4, 4, 16)
    fa4.flash_attn_func(q, q, q, gather_bwd_recompute_p=False)
    with pytest.raises(TypeError, match="unexpected keyword argument 'casual'"):
        fa4.flash_attn_func(q, q, q, casual=True)
