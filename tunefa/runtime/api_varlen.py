"""`flash_attention_varlen`, attention of packed sequences."""

from __future__ import annotations

from typing import Literal, overload

from torch import Tensor

from tunefa.runtime.api import attention, unknown_argument
from tunefa.runtime.call import PACKED, Options, Tensors, Window


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
    return_lse: Literal[False] = ...,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    sinks: Tensor | None = ...,
    deterministic: bool = ...,
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
    return_lse: Literal[True],
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    sinks: Tensor | None = ...,
    deterministic: bool = ...,
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
    return_lse: bool,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    sinks: Tensor | None = ...,
    deterministic: bool = ...,
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
    sinks: Tensor | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
    **unknown: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns the attention of several packed sequences, which follow one another without padding.

    q is (rows, heads, head_dim), k is (keys, heads_kv, head_dim) and v is (keys, heads_kv,
    head_dim_v), with the rows or keys of all sequences. cu_seqlens_q and cu_seqlens_k are the
    cumulative lengths: (batch + 1,), int32, on q's device. Sequence i has the rows cu_seqlens_q[i]
    to cu_seqlens_q[i + 1] of q, and the keys cu_seqlens_k[i] to cu_seqlens_k[i + 1] of k and v.
    Sequences may be empty. max_seqlen_q and max_seqlen_k are the lengths of the longest sequences,
    or more; the config is chosen by them.

    `out` is (rows, heads, head_dim_v) and lse is (heads, rows). Rows of q that belong to no
    sequence are not computed: their part of `out` and lse is uninitialised. All other arguments and
    the gradients are those of `flash_attention`, for each sequence by itself.

    Kernels serve packed sequences on sm90, and the call does not wait for the device. Elsewhere
    PyTorch computes it and waits. A CUDA graph may capture a call that a kernel serves; when it is
    replayed, cu_seqlens may hold other lengths, up to max_seqlen_q and max_seqlen_k.

    Raises TunefaError for arguments that do not fit. On CUDA the contents of cu_seqlens are not
    checked: if they are not cumulative lengths within q and k, or a sequence is longer than its
    max_seqlen, the behaviour is undefined.
    """
    if unknown:
        raise unknown_argument(flash_attention_varlen, unknown)
    tensors = Tensors(q, k, v, (cu_seqlens_q, cu_seqlens_k))
    longest = max_seqlen_q, max_seqlen_k
    options = Options.of(causal, window, PACKED, softcap, (*longest, deterministic))
    return attention(tensors, options, scale, return_lse, sinks)
