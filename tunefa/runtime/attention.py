"""`flash_attention`, as users call it: options read, then the runtime or PyTorch's dispatcher."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from tunefa.runtime import process as runtimes
from tunefa.runtime.call import Call, Descales, Options, Window

Layout = Literal["bshd", "bhsd"]


@overload
def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    layout: Layout = ...,
    return_lse: Literal[False] = ...,
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
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    layout: Layout = ...,
    return_lse: Literal[True],
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
    causal: bool = ...,
    window: Window = ...,
    softcap: float | None = ...,
    scale: float | None = ...,
    layout: Layout = ...,
    return_lse: bool,
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
    options = Options.of(causal, window, layout, softcap)
    descales: Descales = ()
    if q_descale is not None or k_descale is not None or v_descale is not None:
        descales = (q_descale, k_descale, v_descale)
    if torch.compiler.is_compiling():
        out, lse = _through_op(q, k, v, options, scale, descales)
    elif is_plain(q, k, v) and (not descales or _are_plain(descales)):
        plan, scale = runtimes.current().ready(q, k, v, options, scale, descales)
        if not return_lse:
            return plan.output(q, k, v, scale, descales)
        out, lse = plan.run(q, k, v, scale, descales)
    else:
        Call.of(q, k, v, options, scale, descales)  # says what is wrong before the dispatcher does
        out, lse = _through_op(q, k, v, options, scale, descales)
    return (out, lse) if return_lse else out


def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether nothing but the kernel has to happen, so that the dispatcher's tens of us are saved.

    Autograd, tensor subclasses, fake and meta tensors and dispatch modes need it.
    """
    return (
        type(q) is Tensor
        and type(k) is Tensor
        and type(v) is Tensor
        and not (
            torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        )
        and not q.is_meta
        and torch._C._len_torch_dispatch_stack() == 0
    )


def _are_plain(descales: Descales) -> bool:
    """As `is_plain`, where that holds for q, k and v."""
    return all(
        descale is None
        or (type(descale) is Tensor and not (torch.is_grad_enabled() and descale.requires_grad))
        for descale in descales
    )


def _through_op(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Options,
    scale: float | None,
    descales: Descales,
) -> tuple[Tensor, Tensor]:
    from tunefa.runtime import ops  # registers the op; a process that only infers never needs it

    return ops.flash_attention(q, k, v, options, scale, descales)
