"""`tunefa::flash_attention_varlen` as PyTorch's dispatcher knows it; see `ops`.

Gradients come from the FlashAttention-2 inside PyTorch where it serves the call, else from the
closed formula in `reference`, one sequence after the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tunefa.measure import packed
from tunefa.runtime import process as runtimes
from tunefa.runtime.ops import flash_serves, like, register
from tunefa.runtime.packed_call import PackedCall, PackedOptions, PackedTensors

_TENSORS = "Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor cu_seqlens_k"
_OPTIONS = (
    "SymInt max_seqlen_q, SymInt max_seqlen_k, bool causal, int? window_left, int? window_right, "
    "float? softcap, float? scale"
)
_FORWARD = f"({_TENSORS}, {_OPTIONS})"
_BACKWARD = f"(Tensor grad_out, Tensor? grad_lse, Tensor out, Tensor lse, {_TENSORS}, {_OPTIONS})"


def flash_attention_varlen(
    tensors: PackedTensors, options: PackedOptions, scale: float | None
) -> tuple[Tensor, Tensor]:
    """(out, lse) through the dispatcher; arguments as in `tunefa.flash_attention_varlen`."""
    out, lse = torch.ops.tunefa.flash_attention_varlen.default(*tensors, *options, scale)
    return out, lse


def _split(arguments: tuple[Any, ...]) -> tuple[PackedTensors, PackedOptions, float | None]:
    return PackedTensors(*arguments[:5]), PackedOptions(*arguments[5:-1]), arguments[-1]


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    return runtimes.current().attend_packed(*_split(arguments))


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    tensors, options, scale = _split(arguments)
    # The default scale of a symbolic head_dim would be symbolic too; no shape depends on it.
    call = PackedCall.of(tensors, options, 1.0 if scale is None else scale)
    return call.new_out(), call.new_lse()


def _backward(
    grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), with the dtypes and strides that `torch.empty_like` gives for q, k and v."""
    call = PackedCall.of(*_split(arguments))
    if grad_lse is None and _flash_takes(call) and flash_serves(call.q, call.v, call.scale):
        grads = _flash_gradients(call, out, lse, grad_out)
    else:
        grads = packed.gradients(call, out, lse, grad_out, grad_lse)
    dq, dk, dv = (like(*pair) for pair in zip(grads, arguments[:3], strict=True))
    return dq, dk, dv


def _backward_fake(
    grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = arguments[:3]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.options = inputs[5:]
    ctx.save_for_backward(*output, *inputs[:5])
    ctx.set_materialize_grads(False)  # whether lse has a gradient decides which formula serves


def _autograd(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    rest = (None,) * (2 + len(ctx.options))
    if grad_out is None and grad_lse is None:
        return None, None, None, *rest
    grads = torch.ops.tunefa.flash_attention_varlen_backward.default(
        torch.zeros_like(ctx.saved_tensors[0]) if grad_out is None else grad_out,
        grad_lse,
        *ctx.saved_tensors,
        *ctx.options,
    )
    return *grads, *rest


def _flash_takes(call: PackedCall) -> bool:
    """As in `ops`: but which sequences have no more queries than keys only the device knows."""
    if call.empty or call.softcap is not None:
        return False
    return call.causal or (call.window_left is None and call.window_right is None)


def _flash_gradients(
    call: PackedCall, out: Tensor, lse: Tensor, grad_out: Tensor
) -> tuple[Tensor, ...]:
    """Through aten::_flash_attention_backward, whose window leaves the query's own key out of the
    count.

    An lse of inf makes the probabilities of rows without a key 0, where -inf would make them NaN.
    It leaves rows and keys of no sequence as they were.
    """
    q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (call.q, call.k, call.v))
    options = call.options
    # PyTorch makes them C's int, which a window of any number of keys may not fit.
    left = None if call.window_left is None else min(call.window_left, k.shape[0] - 1)
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device)
    grads = torch.ops.aten._flash_attention_backward.default(
        *(grad_out.contiguous(), q, k, v, out, lse.masked_fill(lse.isneginf(), float("inf"))),
        *(*call.cu_seqlens, options.max_seqlen_q, options.max_seqlen_k),
        *(0.0, call.causal, no_dropout, no_dropout.new_empty(0)),
        scale=call.scale,
        window_size_left=left,
        window_size_right=None if left is None else 0,
    )
    bounds = call.cu_seqlens_q, call.cu_seqlens_k, call.cu_seqlens_k
    return tuple(_within(*pair) for pair in zip(grads, bounds, strict=True))


def _within(grad: Tensor, cu_seqlens: Tensor) -> Tensor:
    """`grad` with 0 in the rows of no sequence."""
    row = torch.arange(grad.shape[0], device=grad.device)
    outside = (row < cu_seqlens[0]) | (row >= cu_seqlens[-1])
    return grad.masked_fill(outside[:, None, None], 0.0)


register(
    "flash_attention_varlen", _FORWARD, "Tensor, Tensor", _forward, _forward_fake
).register_autograd(_autograd, setup_context=_setup_context)
register(
    "flash_attention_varlen_backward",
    _BACKWARD,
    "Tensor, Tensor, Tensor",
    *(_backward, _backward_fake),
)
