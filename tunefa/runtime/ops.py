"""`tunefa::flash_attention` as PyTorch's dispatcher knows it: for autograd and torch.compile.

The backward pass is an op of its own, so that AOTAutograd never traces into it. Until tunefa has
a backward kernel, gradients come from the FlashAttention-2 inside PyTorch where it serves the
call, else from the closed formula in `reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tunefa.compile.launch import driver
from tunefa.errors import TunefaError
from tunefa.measure import reference
from tunefa.measure.reference import E4M3
from tunefa.runtime import process as runtime
from tunefa.runtime.call import Call, Descales, Options, heads_first

_OPTIONS = (
    "bool causal, int? window_left, int? window_right, str layout, float? softcap, float? scale"
)
_DESCALES = "Tensor? q_descale=None, Tensor? k_descale=None, Tensor? v_descale=None"
_FORWARD = f"(Tensor q, Tensor k, Tensor v, {_OPTIONS}, {_DESCALES})"
_SETTINGS = len(Options._fields) + 1
"""Arguments between the tensors and the descales: the options and the scale."""
_BACKWARD = (
    "(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"{_OPTIONS})"
)


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: Options,
    scale: float | None,
    descales: Descales = (),
) -> tuple[Tensor, Tensor]:
    """(out, lse) through the dispatcher; arguments as in `tunefa.flash_attention`."""
    out, lse = torch.ops.tunefa.flash_attention.default(q, k, v, *options, scale, *descales)
    return out, lse


def _forward(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    options, scale, descales = _parts(arguments)
    plan, scale = runtime.current().ready(q, k, v, options, scale, descales)
    return plan.run(q, k, v, scale, descales)


def _forward_fake(q: Tensor, k: Tensor, v: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    options, scale, descales = _parts(arguments)
    # The default scale of a symbolic head_dim would be symbolic too; no shape depends on it.
    call = Call.of(q, k, v, options, 1.0 if scale is None else scale, descales)
    return call.new_out(), call.new_lse()


def _parts(arguments: Sequence[Any]) -> tuple[Options, float | None, Descales]:
    """What stands behind q, k and v; the dispatcher leaves out descales that are None."""
    *options, scale = arguments[:_SETTINGS]
    descales = arguments[_SETTINGS:]
    if all(descale is None for descale in descales):
        descales = ()
    return Options(*options), scale, descales


def _backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *arguments: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), with the dtypes and strides that `torch.empty_like` gives for q, k and v."""
    *options, scale = arguments
    call = Call.of(q, k, v, Options(*options), scale)
    layout = call.layout
    grad_out, out = heads_first(grad_out, layout), heads_first(out, layout)
    if grad_lse is None and _flash_takes(call) and flash_serves(call.q, call.v, call.scale):
        grads = _flash_gradients(call, out, lse, grad_out)
    else:
        grads = reference.gradients(call, out, lse, grad_out, grad_lse)
    dq, dk, dv = (
        like(heads_first(grad, layout), tensor)
        for grad, tensor in zip(grads, (q, k, v), strict=True)
    )
    return dq, dk, dv


def _backward_fake(
    grad_out: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *arguments = inputs
    ctx.arguments = arguments[:_SETTINGS]
    ctx.save_for_backward(q, k, v, *output)
    ctx.set_materialize_grads(False)  # whether lse has a gradient decides which formula serves


def _autograd(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    if grad_out is None and grad_lse is None:
        return (None,) * (6 + len(ctx.arguments))
    q, k, v, out, lse = ctx.saved_tensors
    if q.dtype == E4M3:
        raise TunefaError(
            f"attention of {E4M3} has no gradient: train in bf16, or run it under torch.no_grad()"
        )
    grads = torch.ops.tunefa.flash_attention_backward.default(
        torch.zeros_like(out) if grad_out is None else grad_out,
        grad_lse,
        *(q, k, v, out, lse),
        *ctx.arguments,
    )
    return (*grads, None, None, None, *(None for _ in ctx.arguments))


def flash_serves(q: Tensor, v: Tensor, scale: float) -> bool:
    """Whether PyTorch's FlashAttention-2 computes a call's gradients, if there is something to."""
    head_dim = q.shape[-1]
    if not (
        q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16)
        and head_dim == v.shape[-1]
        and head_dim % 8 == 0
        and scale > 0
        and torch.backends.cuda.is_flash_attention_available()
    ):
        return False
    capability = driver.device(q.get_device()).compute_capability
    # Its backward for head_dim > 192 needs more shared memory than sm86, sm89 and sm120 have.
    return capability >= (8, 0) and (head_dim <= 192 or (capability[1] == 0 and capability[0] < 12))


def _flash_takes(call: Call) -> bool:
    """Whether there is something to compute, without a soft-cap, and a window means the same there.

    FlashAttention takes a side of seqlen_k keys for all of them. Beyond the diagonal that holds for
    no more queries than keys.
    """
    if call.empty or call.softcap is not None:
        return False
    return call.causal or call.band == (None, None) or call.q.shape[2] <= call.k.shape[2]


def _flash_gradients(
    call: Call, out: Tensor, lse: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Through aten::_flash_attention_backward, which takes (batch, seqlen, heads, head_dim) and
    means the same by causal and by the two sides of a window. All tensors here have heads first.

    Rows that see no key, with an lse of -inf, would give NaN there: they stay outside.
    """
    first = call.first_row
    q, out, grad_out = (x[:, :, first:].transpose(1, 2) for x in (call.q, out, grad_out))
    k, v = call.k.transpose(1, 2), call.v.transpose(1, 2)
    q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
    # PyTorch makes them C's int, which a window of any number of keys may not fit.
    left, right = (None if side is None else min(side, k.shape[1] - 1) for side in call.band)
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device)
    grads = torch.ops.aten._flash_attention_backward.default(
        *(grad_out, q, k, v, out, lse[:, :, first:].contiguous()),
        *(None, None, q.shape[1], k.shape[1]),  # no packed sequences; the longest of each
        *(0.0, call.causal, no_dropout, no_dropout.new_empty(0)),
        scale=call.scale,
        window_size_left=left,
        window_size_right=right,
    )
    dq, dk, dv = (grad.transpose(1, 2) for grad in grads)
    if first:
        dq = torch.cat([dq.new_zeros((*dq.shape[:2], first, dq.shape[3])), dq], dim=2)
    return dq, dk, dv


def like(grad: Tensor, tensor: Tensor) -> Tensor:
    """`grad` with dtype and strides of `torch.empty_like(tensor)`, as the fake op promises."""
    made = torch.empty_like(tensor)
    if (grad.dtype, grad.stride()) == (made.dtype, made.stride()):
        return grad
    return made.copy_(grad)


def register(
    name: str,
    signature: str,
    returns: str,
    run: Callable[..., tuple[Tensor, ...]],
    fake: Callable[..., tuple[Tensor, ...]],
) -> Any:
    """`tunefa::name` as the dispatcher calls it, and for shapes alone; it changes no argument."""
    schema = f"{signature} -> ({returns})"
    op: Any = torch.library.custom_op(f"tunefa::{name}", run, mutates_args=(), schema=schema)
    op.register_fake(fake)
    return op


register("flash_attention", _FORWARD, "Tensor, Tensor", _forward, _forward_fake).register_autograd(
    _autograd, setup_context=_setup_context
)
register("flash_attention_backward", _BACKWARD, "Tensor, Tensor, Tensor", _backward, _backward_fake)
