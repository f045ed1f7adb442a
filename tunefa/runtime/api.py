"""`flash_attention` and `flash_attention_varlen`, as users call them."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor

from tunefa.runtime import process as runtimes
from tunefa.runtime.call import PACKED, Call, Descales, Options, Tensors, Window

Layout = Literal["bshd", "bhsd"]


@overload
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[False] = ...,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    layout: Layout = ...,
    q_descale: Tensor | None = ...,
    k_descale: Tensor | None = ...,
    v_descale: Tensor | None = ...,
) -> Tensor: ...


@overload
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: Literal[True],
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    layout: Layout = ...,
    q_descale: Tensor | None = ...,
    k_descale: Tensor | None = ...,
    v_descale: Tensor | None = ...,
) -> tuple[Tensor, Tensor]: ...


@overload
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    return_lse: bool,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    layout: Layout = ...,
    q_descale: Tensor | None = ...,
    k_descale: Tensor | None = ...,
    v_descale: Tensor | None = ...,
) -> Tensor | tuple[Tensor, Tensor]: ...


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Window = None,
    softcap: float | None = None,
    scale: float | None = None,
    layout: Layout = "bshd",
    return_lse: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale * q @ k^T) @ v, by the fastest kernel known for the shape and the device.

    q is (batch, seqlen_q, heads, head_dim), k (batch, seqlen_k, heads_kv, head_dim) and v
    (batch, seqlen_k, heads_kv, head_dim_v); in layout "bhsd", heads come before seqlen. Strides are
    free. Consecutive query heads share a KV head. `out` has q's dtype and layout, and head_dim_v.

    torch.float8_e4m3fn: q, k and v are multiplied by q_descale, k_descale and v_descale, each fp32,
    (batch, heads_kv), not negative, 1 if None; `out` is bf16, and there are no gradients.

    causal: query i sees keys j <= i + seqlen_k - seqlen_q, as in FlashAttention from 2.1 on; a row
    that sees none gives 0. window: of these keys, only the last `window`; or (left, right), which
    needs no causal=True: i - left <= j - (seqlen_k - seqlen_q) <= i + right, None for no limit, and
    causal=True is a right of 0. softcap: scores s become softcap * tanh(s / softcap), in kernels by
    the hardware's tanh, with a relative error of up to 2^-11. Kernels serve windows and soft-caps
    on sm90 only. scale: head_dim ** -0.5 if None. return_lse: returns (out, lse), lse =
    log(sum(exp(scale * q @ k^T))) of these scores, (batch, heads, seqlen_q), in fp32 (fp64 for fp64
    inputs).

    Works under autograd, torch.compile and CUDA graph capture, from a shape's first call on.
    Where no kernel serves the call (a CPU tensor, fp64, another chip) PyTorch computes it;
    `last_choice()` says what ran and why. Raises TunefaError for arguments that do not fit.
    """
    descales: Descales = ()
    if q_descale is not None or k_descale is not None or v_descale is not None:
        descales = (q_descale, k_descale, v_descale)
    options = Options.of(causal, window, layout, softcap)
    return _attention(Tensors(q, k, v, None, descales), options, scale, return_lse)


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
    tensors = Tensors(q, k, v, (cu_seqlens_q, cu_seqlens_k))
    options = Options.of(causal, window, PACKED, softcap, max_seqlen_q, max_seqlen_k)
    return _attention(tensors, options, scale, return_lse)


def _attention(
    tensors: Tensors, options: Options, scale: float | None, return_lse: bool
) -> Tensor | tuple[Tensor, Tensor]:
    if torch.compiler.is_compiling():
        out, lse = _through_op(tensors, options, scale)
    elif _is_plain(tensors):
        plan, scale = runtimes.current().ready(tensors, options, scale)
        if not return_lse:
            return plan.output(tensors, scale)
        out, lse = plan.run(tensors, scale)
    else:
        Call.of(tensors, options, scale)  # says what is wrong before the dispatcher does
        out, lse = _through_op(tensors, options, scale)
    return (out, lse) if return_lse else out


def _is_plain(tensors: Tensors) -> bool:
    """Whether nothing but the kernel has to happen, so that the dispatcher's tens of us are saved.

    Autograd, tensor subclasses, fake and meta tensors and dispatch modes need the dispatcher.
    """
    q, k, v, cu_seqlens, descales = tensors
    return (
        type(q) is Tensor
        and type(k) is Tensor
        and type(v) is Tensor
        and not (
            torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        )
        and not q.is_meta
        and torch._C._len_torch_dispatch_stack() == 0
        and (cu_seqlens is None or all(type(starts) is Tensor for starts in cu_seqlens))
        and (not descales or all(map(_is_plain_descale, descales)))
    )


def _is_plain_descale(descale: Any) -> bool:
    return descale is None or (
        type(descale) is Tensor and not (torch.is_grad_enabled() and descale.requires_grad)
    )


def _through_op(tensors: Tensors, options: Options, scale: float | None) -> tuple[Tensor, Tensor]:
    from tunefa.runtime import ops  # registers the op; a process that only infers never needs it

    return ops.flash_attention(tensors, options, scale)
