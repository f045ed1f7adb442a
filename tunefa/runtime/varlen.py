"""`flash_attention_varlen`: `flash_attention` for sequences that are packed, rows after rows."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from tunefa.runtime import process as runtimes
from tunefa.runtime.attention import is_plain
from tunefa.runtime.call import Window
from tunefa.runtime.packed_call import PackedCall, PackedOptions, PackedTensors


@overload
def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...


@overload
def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


@overload
def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    return_lse: bool,
) -> Tensor | tuple[Tensor, Tensor]: ...


def flash_attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    window: Window = None,
    softcap: float | None = None,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`flash_attention` of each of some sequences, whose rows follow one another.

    q is (rows, heads, head_dim), k (keys, heads_kv, head_dim) and v (keys, heads_kv, head_dim_v),
    all sequences together. cu_seqlens_q and cu_seqlens_k are (batch + 1,), int32, on q's device:
    sequence i has the rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] of q, and the like of k and v.
    Sequences may be empty. max_seqlen_q and max_seqlen_k are the longest, or more; the config is
    chosen by them. `out` is (rows, heads, head_dim_v), lse (heads, rows); rows of q beyond the last
    sequence are not computed, and theirs hold anything. causal, window, softcap, scale, return_lse
    and gradients are as `flash_attention` says, for each sequence by itself.

    Nothing waits for the device where a kernel serves the call, on sm90; PyTorch, which does
    elsewhere, has to. A CUDA graph may capture a call that a kernel serves, and when it is
    replayed, cu_seqlens may hold other lengths up to max_seqlen_q and max_seqlen_k. Raises
    TunefaError for arguments that do not fit; cu_seqlens that are not cumulated lengths within q
    and k are undefined behaviour.
    """
    tensors = PackedTensors(q, k, v, cu_seqlens_q, cu_seqlens_k)
    options = PackedOptions.of(max_seqlen_q, max_seqlen_k, causal, window, softcap)
    if torch.compiler.is_compiling():
        out, lse = _through_op(tensors, options, scale)
    elif _is_plain(tensors):
        out, lse = runtimes.current().attend_packed(tensors, options, scale)
    else:
        PackedCall.of(tensors, options, scale)  # says what is wrong before the dispatcher does
        out, lse = _through_op(tensors, options, scale)
    return (out, lse) if return_lse else out


def _is_plain(tensors: PackedTensors) -> bool:
    """As of `attention.is_plain`; what has no gradients may still be of a subclass."""
    q, k, v, *cu_seqlens = tensors
    return is_plain(q, k, v) and all(type(starts) is Tensor for starts in cu_seqlens)


def _through_op(
    tensors: PackedTensors, options: PackedOptions, scale: float | None
) -> tuple[Tensor, Tensor]:
    from tunefa.runtime import (
        varlen_ops,  # registers the op; a process that only infers never needs it
    )

    return varlen_ops.flash_attention_varlen(tensors, options, scale)
