"""The functions of flash-attn 2.8, with its names and arguments, computed by tunefa.

    from tunefa.integrations.compat.flash_attn2 import flash_attn_func

Source of the signatures: flash_attn/flash_attn_interface.py of flash-attn 2.8. Dropout, ALiBi,
rotary embeddings, and a cache that starts elsewhere than at its first row raise TunefaError.
`return_attn_probs` gives (out, lse, None): without dropout flash-attn has no probabilities either.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.integrations.compat.arguments import Sides, flash_lse, refuse, window
from tunefa.runtime.api import flash_attention
from tunefa.runtime.api_varlen import flash_attention_varlen
from tunefa.runtime.argument_checks import check_starts
from tunefa.runtime.decode import decode_attention

Result = Tensor | tuple[Tensor, Tensor, None]
_ALL: Sides = (-1, -1)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sides = _ALL,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Result:
    """Returns the attention of q, (batch, seqlen, heads, head_dim), over k and v, (batch, seqlen_k,
    heads_kv, head_dim); with `return_attn_probs` also lse, (batch, heads, seqlen)."""
    refuse("flash_attn_func", dropout_p=dropout_p, alibi_slopes=alibi_slopes)
    named = _named(softmax_scale, causal, window_size, softcap, deterministic)
    return _result(flash_attention(q, k, v, **named, return_lse=return_attn_probs))


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **named: Any) -> Result:
    """Returns `flash_attn_func` of kv, (batch, seqlen_k, 2, heads_kv, head_dim)."""
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, *arguments, **named)


def flash_attn_qkvpacked_func(qkv: Tensor, *arguments: Any, **named: Any) -> Result:
    """Returns `flash_attn_func` of qkv, (batch, seqlen, 3, heads, head_dim)."""
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *arguments, **named)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sides = _ALL,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Result:
    """Returns the attention of packed sequences, q (rows, heads, head_dim) over k and v, (keys,
    heads_kv, head_dim); with `return_attn_probs` also lse, (heads, rows).

    With a block table, (batch, pages of the longest sequence), k and v are a cache, (pages,
    page_size, heads_kv, head_dim), and there are no gradients.
    """
    refuse("flash_attn_varlen_func", dropout_p=dropout_p, alibi_slopes=alibi_slopes)
    named = _named(softmax_scale, causal, window_size, softcap, deterministic)
    named.update(max_seqlen_q=int(max_seqlen_q), max_seqlen_k=int(max_seqlen_k))
    if block_table is None:
        named.update(cu_seqlens_k=cu_seqlens_k)
    else:
        check_starts("cu_seqlens_k", cu_seqlens_k, q)
        named.update(block_table=block_table, seqlens_k=cu_seqlens_k.diff())
    return _result(
        flash_attention_varlen(q, k, v, cu_seqlens_q, **named, return_lse=return_attn_probs)
    )


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, *arguments: Any, **named: Any) -> Result:
    """Returns `flash_attn_varlen_func` of kv, (keys, 2, heads_kv, head_dim)."""
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, *arguments, **named)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *arguments: Any, **named: Any
) -> Result:
    """Returns `flash_attn_varlen_func` of qkv, (rows, 3, heads, head_dim)."""
    q, k, v = qkv.unbind(1)
    lengths = cu_seqlens, cu_seqlens, max_seqlen, max_seqlen
    return flash_attn_varlen_func(q, k, v, *lengths, *arguments, **named)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Sides = _ALL,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns the attention of q, (batch, seqlen, heads, head_dim), over a cache, by
    `tunefa.decode_attention`; with `return_softmax_lse` also lse, (batch, heads, seqlen).

    The cache is (batch, keys, heads_kv, head_dim), or with a block table (pages, page_size,
    heads_kv, head_dim). New keys and values k and v are written into it behind `cache_seqlens`.
    tunefa chooses its own number of splits.
    """
    refuse(
        "flash_attn_with_kvcache",
        rotary_cos=rotary_cos,
        rotary_sin=rotary_sin,
        cache_batch_idx=cache_batch_idx,
        cache_leftpad=cache_leftpad,
        alibi_slopes=alibi_slopes,
    )
    named = _named(softmax_scale, causal or q.shape[1] == 1, window_size, softcap)
    if cache_seqlens is None:
        if block_table is not None:
            raise TunefaError("cache_seqlens is missing: a cache with pages needs it")
        cache_seqlens = k_cache.shape[1]
    if not isinstance(cache_seqlens, Tensor):
        cache_seqlens = q.new_full((q.shape[0],), cache_seqlens, dtype=torch.int32)
    named.update(k=k, v=v, return_lse=return_softmax_lse)
    decode: Any = decode_attention
    return decode(q, k_cache, v_cache, cache_seqlens, block_table, **named)  # type: ignore[no-any-return]


def _named(
    scale: float | None,
    causal: bool,
    window_size: Sides,
    softcap: float,
    deterministic: bool | None = None,
) -> dict[str, Any]:
    """The arguments of tunefa's functions for those of flash-attn."""
    named: dict[str, Any] = {"causal": causal, "scale": scale, "softcap": softcap or None}
    named["window"] = window(window_size, causal)
    return named if deterministic is None else {**named, "deterministic": deterministic}


def _result(made: Tensor | tuple[Tensor, Tensor]) -> Result:
    if isinstance(made, Tensor):
        return made
    out, lse = made
    return out, flash_lse(lse), None
