"""The functions of flash-attn-4, with its names and arguments, computed by tunefa.

    from tunefa.integrations.compat.flash_attn4 import flash_attn_func

Source of the signatures: flash_attn/cute/interface.py of flash-attn-4 4.0.0b36. Its score and mask
functions, block sparsity, and the parts of latent attention (qv, gather_kv_indices) raise
TunefaError. Arguments that only choose how its kernels work are taken and not used. Both functions
return (out, lse), where lse is None unless `return_lse`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.integrations.compat.arguments import Sides, refuse, window
from tunefa.runtime.api import flash_attention
from tunefa.runtime.api_varlen import flash_attention_varlen
from tunefa.runtime.decode import decode_attention

Result = tuple[Tensor, Tensor | None]
_ALL: Sides = (None, None)
UNUSED = frozenset(
    {
        "num_splits",
        "pack_gqa",
        "scheduler_metadata",
        "seqlen_k_per_split",
        "disable_scheduler_metadata",
        "gather_bwd_recompute_p",
        "gather_bwd_token_chunk",
        "min_seqlen_k",
    }
)
"""Arguments that do not change what is computed."""
LACKING = frozenset(
    {
        "score_mod",
        "score_mod_bwd",
        "mask_mod",
        "aux_tensors",
        "aux_scalars",
        "block_sparse_tensors",
        "block_sparse_tensors_bwd",
    }
)
"""Arguments for what tunefa has not."""


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sides = _ALL,
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    *,
    return_lse: bool = False,
    **more: Any,
) -> Result:
    """Returns the attention of q, (batch, seqlen, heads, head_dim), over k and v, (batch, seqlen_k,
    heads_kv, head_dim | head_dim_v), and lse, (batch, heads, seqlen)."""
    name = "flash_attn_func"
    refuse(name, qv=qv, gather_kv_indices=gather_kv_indices)
    _check(name, more)
    named = _named(softmax_scale, causal, window_size, learnable_sink, softcap)
    made = flash_attention(q, k, v, **named, deterministic=deterministic, return_lse=return_lse)
    return _result(made)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sides = _ALL,
    learnable_sink: Tensor | None = None,
    softcap: float = 0.0,
    *,
    deterministic: bool = False,
    return_lse: bool = False,
    **more: Any,
) -> Result:
    """Returns the attention of packed sequences, q (rows, heads, head_dim) over k and v, (keys,
    heads_kv, head_dim | head_dim_v), and lse, (heads, rows).

    max_seqlen may be left out. Without cu_seqlens, tensors are as in `flash_attn_func`. With
    `seqused_k` for cu_seqlens_k, k and v are a cache, of pages with `page_table`: no gradients.
    """
    name = "flash_attn_varlen_func"
    _check(name, more)
    refuse(name, qv=qv, gather_kv_indices=gather_kv_indices, seqused_q=seqused_q)
    named = _named(softmax_scale, causal, window_size, learnable_sink, softcap)
    named.update(return_lse=return_lse)
    if cu_seqlens_k is None and (seqused_k is not None or page_table is not None):
        queries = cu_seqlens_q, int(max_seqlen_q or q.shape[0]), max_seqlen_k
        return _over_cache((q, k, v), (seqused_k, page_table), queries, named)
    refuse(name, seqused_k=seqused_k, page_table=page_table)
    named["deterministic"] = deterministic
    if cu_seqlens_q is cu_seqlens_k is None:
        return _result(flash_attention(q, k, v, **named))
    if cu_seqlens_q is None or cu_seqlens_k is None:
        raise TunefaError("one of cu_seqlens_q and cu_seqlens_k is missing: give both, or neither")
    longest = int(max_seqlen_q or q.shape[0]), int(max_seqlen_k or k.shape[0])
    return _result(flash_attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *longest, **named))


def _over_cache(
    inputs: tuple[Tensor, Tensor, Tensor],
    cache: tuple[Tensor | None, Tensor | None],
    lengths: tuple[Tensor | None, int, int | None],
    named: dict[str, Any],
) -> Result:
    """Returns the attention over a cache, (batch, keys, heads_kv, head_dim), or with a page table
    (pages, page_size, heads_kv, head_dim). Without one, packed queries take each sequence's keys
    for a page. `lengths` are cu_seqlens_q and the lengths of the longest sequences."""
    q, k, v = inputs
    (counts, table), (starts, most_q, most_k) = cache, lengths
    if counts is None:
        raise TunefaError(
            "seqused_k is missing: with page_table give the number of keys of each sequence, "
            "(batch,) in torch.int32"
        )
    if named["sinks"] is not None:
        named["sinks"] = named["sinks"].detach().float()
    if starts is None:
        if q.shape[1] == 1:
            named["causal"] = True  # it hides nothing from a last row, and a window needs it
        return _result(decode_attention(q, k, v, counts, table, **named))
    if table is None:
        table = torch.arange(k.shape[0], dtype=torch.int32, device=k.device)[:, None]
    named.update(max_seqlen_q=most_q, max_seqlen_k=most_k, block_table=table, seqlens_k=counts)
    return _result(flash_attention_varlen(q, k, v, starts, **named))


def _check(function: str, more: dict[str, Any]) -> None:
    """Raises TunefaError for an argument that tunefa lacks, TypeError for one that is unknown."""
    refuse(function, **{name: value for name, value in more.items() if name in LACKING})
    for name in more:
        if name not in LACKING | UNUSED:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")


def _named(
    scale: float | None, causal: bool, window_size: Sides, sinks: Tensor | None, softcap: float
) -> dict[str, Any]:
    """The arguments of tunefa's functions for those of flash-attn-4."""
    sides = window(window_size, causal)
    return {
        "causal": causal,
        "scale": scale,
        "softcap": softcap or None,
        "sinks": sinks,
        "window": sides,
    }


def _result(made: Tensor | tuple[Tensor, Tensor]) -> Result:
    return (made, None) if isinstance(made, Tensor) else made
