"""`decode_attention`, attention of few queries over a cache of keys and values."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

from tunefa.errors import TunefaError
from tunefa.runtime import process
from tunefa.runtime.api import Layout
from tunefa.runtime.call import Window, heads_first
from tunefa.runtime.decode_call import CacheCall, CacheOptions, CacheTensors


@overload
def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seqlens: Tensor,
    block_table: Tensor | None = ...,
    *,
    return_lse: Literal[False] = ...,
    k: Tensor | None = ...,
    v: Tensor | None = ...,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    sinks: Tensor | None = ...,
    layout: Layout = ...,
    out: Tensor | None = ...,
) -> Tensor: ...


@overload
def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seqlens: Tensor,
    block_table: Tensor | None = ...,
    *,
    return_lse: Literal[True],
    k: Tensor | None = ...,
    v: Tensor | None = ...,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    sinks: Tensor | None = ...,
    layout: Layout = ...,
    out: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    seqlens: Tensor,
    block_table: Tensor | None = None,
    *,
    k: Tensor | None = None,
    v: Tensor | None = None,
    causal: bool = True,
    window: Window = None,
    softcap: float | None = None,
    scale: float | None = None,
    sinks: Tensor | None = None,
    layout: Layout = "bshd",
    out: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns the attention of the last queries of each sequence over its cached keys and values.

    q is (batch, seqlen_q, heads, head_dim). The cache is k_cache (batch, keys, heads_kv, head_dim)
    and v_cache (batch, keys, heads_kv, head_dim_v). seqlens, (batch,) in int32, says how many keys
    of it each sequence has; what lies behind them is not used, and may be NaN. With layout "bhsd",
    heads come before seqlen_q and keys. The result has q's shape with head_dim_v.

    block_table: the cache has pages, k_cache (pages, page_size, heads_kv, head_dim), and
    block_table, (batch, pages of the longest sequence) in int32, has the numbers of the pages of
    each sequence. Entries behind its last page are not read.

    k, v: new keys and values, (batch, new, heads_kv, head_dim | head_dim_v), which are written into
    the cache behind the `seqlens` keys of each sequence first. The queries see them. The cache must
    have room for them. seqlens itself does not change.

    causal: query i of m sees the keys j <= i + n - m of its n, new ones included. window, softcap
    and scale are those of `tunefa.flash_attention`; a window needs a causal mask.

    sinks: (heads,) in fp32, a logit of each head beside its scores that has no value (attention
    sinks, arXiv:2309.17453). lse includes it.

    out: where the result is written. return_lse: also return lse, the logsumexp of the scores of
    each row, (batch, heads, seqlen_q) in fp32.

    A sequence without keys gives 0, and an lse of -inf. A sequence gets the same bits whatever else
    is in the batch, as its config and its splits depend on no other sequence. Lengths, pages and
    their contents are read on the device: the call does not wait for it, and a CUDA graph of the
    call may be replayed with others. On the CPU, and where no kernel serves the call, PyTorch
    computes it and waits.

    It has no gradients. Raises TunefaError for arguments that do not fit.
    """
    tensors = CacheTensors(q, k_cache, v_cache, seqlens, block_table, sinks)
    options = CacheOptions.of(causal, window, softcap, layout)
    _check_no_gradients(tensors, k, v)
    if k is not None or v is not None:
        tensors = tensors._replace(seqlens=_append(tensors, layout, k, v))
    if is_compiling():
        made = torch.ops.tunefa.decode_attention.default(*tensors, *options, scale)
        found, lse = made if out is None else (out.copy_(made[0]), made[1])
    else:
        found, lse = process.current().decode(tensors, options, scale, out)
    return (found, lse) if return_lse else found


def _check_no_gradients(tensors: CacheTensors, *more: Tensor | None) -> None:
    if not is_grad_enabled():
        return
    for tensor in (*tensors, *more):
        if isinstance(tensor, Tensor) and tensor.requires_grad:
            raise TunefaError(
                "decode_attention has no gradients: call it under torch.no_grad(), or "
                "flash_attention where you need them"
            )


def _append(tensors: CacheTensors, layout: str, k: Tensor | None, v: Tensor | None) -> Tensor:
    """Writes new keys and values into the cache; returns the lengths with them."""
    if k is None or v is None:
        raise TunefaError(f"{'k' if k is None else 'v'} is missing: give both k and v, or neither")
    call = CacheCall.of(tensors, CacheOptions(layout=layout), None)
    new_k, new_v = heads_first(k, layout), heads_first(v, layout)
    for name, new, cache in (("k", new_k, call.k), ("v", new_v, call.v)):
        shape = call.q.shape[0], cache.shape[1], new_k.shape[2], cache.shape[3]
        if new.dim() != 4 or tuple(new.shape) != shape or new.dtype != cache.dtype:
            raise TunefaError(
                f"{name} is {tuple(new.shape)}, {new.dtype} with heads first: give (batch, "
                f"heads_kv, new, {'head_dim' if name == 'k' else 'head_dim_v'}), here {shape}, in "
                f"{cache.dtype}"
            )
    count = new_k.shape[2]
    places = tensors.seqlens[:, None].long() + torch.arange(count, device=k.device)
    rows = torch.arange(places.shape[0], device=k.device)[:, None]
    if call.block_table is not None:
        page = call.k.shape[2]
        rows = call.block_table.gather(1, places // page).long()
        places = places % page
    call.k.transpose(1, 2)[rows, places] = new_k.transpose(1, 2)
    call.v.transpose(1, 2)[rows, places] = new_v.transpose(1, 2)
    return tensors.seqlens + count


_SCHEMA = (
    "(Tensor q, Tensor k_cache, Tensor v_cache, Tensor seqlens, Tensor? block_table, "
    "Tensor? sinks, bool causal, int? window_left, float? softcap, str layout, float? scale)"
    " -> (Tensor, Tensor)"
)


def _run(*arguments: object) -> tuple[Tensor, Tensor]:
    *given, scale = arguments
    tensors, options = CacheTensors(*given[:6]), CacheOptions(*given[6:])  # type: ignore[arg-type]
    return process.current().decode(tensors, options, scale, None)  # type: ignore[arg-type]


def _fake(*arguments: object) -> tuple[Tensor, Tensor]:
    *given, _ = arguments
    tensors, options = CacheTensors(*given[:6]), CacheOptions(*given[6:])  # type: ignore[arg-type]
    call = CacheCall.of(tensors, options, 1.0)
    return call.new_out(), call.new_lse()


torch.library.custom_op(
    "tunefa::decode_attention", _run, mutates_args=(), schema=_SCHEMA
).register_fake(_fake)
