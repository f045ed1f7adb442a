"""`flash_attention`, which users call, and what `flash_attention_varlen` shares with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

from torch import Tensor, is_grad_enabled
from torch._C import (
    _are_functorch_transforms_active,
    _is_any_autocast_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from tunefa.errors import TunefaError
from tunefa.runtime import autocast, plain_autograd, process
from tunefa.runtime.call import Call, Descales, Options, Tensors, Window
from tunefa.runtime.sinks import check_sinks, with_sinks

Layout = Literal["bshd", "bhsd"]
Accumulate = Literal["precise", "fast"]


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
    sinks: Tensor | None = ...,
    deterministic: bool = ...,
    layout: Layout = ...,
    q_descale: Tensor | None = ...,
    k_descale: Tensor | None = ...,
    v_descale: Tensor | None = ...,
    accumulate: Accumulate = ...,
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
    sinks: Tensor | None = ...,
    deterministic: bool = ...,
    layout: Layout = ...,
    q_descale: Tensor | None = ...,
    k_descale: Tensor | None = ...,
    v_descale: Tensor | None = ...,
    accumulate: Accumulate = ...,
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
    sinks: Tensor | None = ...,
    deterministic: bool = ...,
    layout: Layout = ...,
    q_descale: Tensor | None = ...,
    k_descale: Tensor | None = ...,
    v_descale: Tensor | None = ...,
    accumulate: Accumulate = ...,
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
    sinks: Tensor | None = None,
    deterministic: bool = False,
    layout: Layout = "bshd",
    return_lse: bool = False,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    accumulate: Accumulate = "precise",
    **unknown: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns softmax(scale * q @ k^T) @ v, by the fastest kernel known for the shape and the
    device.

    q is (batch, seqlen_q, heads, head_dim), k is (batch, seqlen_k, heads_kv, head_dim) and v is
    (batch, seqlen_k, heads_kv, head_dim_v). With layout "bhsd", heads come before seqlen. Tensors
    may have any strides. Consecutive query heads share a KV head. The result, `out`, has q's dtype
    and layout, with head_dim_v instead of head_dim.

    q_descale, k_descale, v_descale: for torch.float8_e4m3fn only. q, k and v are multiplied by
    them. Each is fp32, (batch, heads_kv) and not negative; None stands for 1. `out` is bf16 then,
    and there are no gradients.

    accumulate: for e4m3 only. Tensor cores add 8-bit products with about 14 bits and cut off the
    rest (arXiv:2412.19437, section 3.5.2). "precise" adds their sums in fp32 before they are large:
    after 512 keys where values are positive, and seldom where they have both signs, which is
    faster. Over 16,384 keys with positive values `out` is less than 1 % off by what is cut off, and
    1.4 % where they are positive from the middle on. "fast" leaves all sums to the tensor cores, as
    other libraries do: it is faster, and `out` is up to 26 % off there.

    causal: query i sees the keys j <= i + seqlen_k - seqlen_q, as in FlashAttention from version
    2.1 on. A row that sees no key gives 0.

    window: a number n with causal=True, or a pair (left, right). With a number, a query sees the
    last n of its causal keys. With a pair, i - left <= j - (seqlen_k - seqlen_q) <= i + right, and
    None means no limit; causal=True makes right 0. Own kernels serve windows on sm90 only.

    softcap: the scores s become softcap * tanh(s / softcap). Kernels use the hardware's tanh, with
    a relative error of up to 2^-11, and serve soft-caps on sm90 only.

    scale: head_dim ** -0.5 if None.

    sinks: (heads,), a logit of each head beside the scores of a row, which has no value (attention
    sinks, arXiv:2309.17453). It has a gradient, and lse includes it. PyTorch adds it to what the
    kernels wrote: out is read and written once more.

    deterministic: the gradients of equal calls are equal to the last bit. Otherwise dq may not be.

    return_lse: also return lse, the logsumexp of the scores of each row, as (out, lse). It is
    (batch, heads, seqlen_q), in fp32, or in fp64 for fp64 inputs.

    It works with autograd, torch.compile, torch.func's grad and vmap, autocast, and CUDA graph
    capture, even on a shape's first call. It has no forward-mode and no second derivatives. Where
    no kernel serves the call, PyTorch computes it. Raises TunefaError for wrong arguments.
    """
    if unknown:
        raise unknown_argument(flash_attention, unknown)
    descales: Descales = ()
    if q_descale is not None or k_descale is not None or v_descale is not None:
        descales = (q_descale, k_descale, v_descale)
    options = Options.of(causal, window, layout, softcap, (0, 0, deterministic), accumulate)
    # The class itself would take twice the time.
    tensors = tuple.__new__(Tensors, (q, k, v, None, descales))
    return attention(tensors, options, scale, return_lse, sinks)


def attention(
    tensors: Tensors,
    options: Options,
    scale: float | None,
    return_lse: bool,
    sinks: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns out, or (out, lse), of a call whose arguments were not checked."""
    if sinks is not None:
        check_sinks(sinks, tensors, options)
        out, lse = attention(tensors, options, scale, True)
        starts_q = tensors.cu_seqlens[0] if tensors.cu_seqlens else None
        out, lse = with_sinks(out, lse, sinks, options.layout, starts_q)
        return (out, lse) if return_lse else out
    if _is_any_autocast_enabled():
        tensors = autocast.cast(tensors)
    if is_compiling():
        out, lse = _through_op(tensors, options, scale)
    elif not _is_plain(tensors):
        Call.of(tensors, options, scale)  # raises for wrong arguments before the dispatcher does
        out, lse = _through_op(tensors, options, scale)
    elif is_grad_enabled() and (
        tensors.q.requires_grad or tensors.k.requires_grad or tensors.v.requires_grad
    ):
        out, lse = plain_autograd.attention(tensors, options, scale)
    else:
        plan, scale = process.current().ready(tensors, options, scale)
        if not return_lse:
            return plan.output(tensors, scale)
        out, lse = plan.run(tensors, scale)
    return (out, lse) if return_lse else out


def _is_plain(tensors: Tensors) -> bool:
    """Whether the call can go around PyTorch's dispatcher, which takes tens of microseconds.

    torch.func, tensor subclasses, fake tensors, dispatch modes, and torch.jit.trace need the
    dispatcher. A trace would keep the tensors that the call was traced with.
    """
    q, k, v, cu_seqlens, descales = tensors
    return (
        type(q) is Tensor
        and type(k) is Tensor
        and type(v) is Tensor
        # As `plain_autograd.no_mode_is_active` has it; one more function costs 0.1 us here.
        and _len_torch_dispatch_stack() == 0
        and not _are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and not _is_tracing()
        and (
            cu_seqlens is None or (type(cu_seqlens[0]) is Tensor and type(cu_seqlens[1]) is Tensor)
        )
        and (not descales or all(map(_is_plain_descale, descales)))
    )


def _is_plain_descale(descale: Any) -> bool:
    return descale is None or (
        type(descale) is Tensor and not (is_grad_enabled() and descale.requires_grad)
    )


def _through_op(tensors: Tensors, options: Options, scale: float | None) -> tuple[Tensor, Tensor]:
    from tunefa.runtime import ops  # registers the op, which inference alone never needs

    if not is_compiling():
        from tunefa.runtime import transforms

        if transforms.active():
            return transforms.attention(tensors, options, scale)
    return ops.flash_attention(tensors, options, scale)


def unknown_argument(function: Callable[..., Any], given: Mapping[str, object]) -> TunefaError:
    from tunefa.runtime.parameter_names import unknown_parameter

    return unknown_parameter(function, given)
