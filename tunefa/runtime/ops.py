"""The op `tunefa::flash_attention` of PyTorch's dispatcher, for autograd and torch.compile.

It serves dense and packed sequences; tensors that a call does not have are None.

The backward pass is an op of its own, so that AOTAutograd never traces into it. tunefa has no
backward kernel yet: gradients come from the FlashAttention-2 inside PyTorch where it serves the
call, else from the formula in `tunefa.measure.reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tunefa.compile.launch import driver
from tunefa.errors import TunefaError
from tunefa.measure import reference
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime import process as runtime
from tunefa.runtime.call import Call, Options, Tensors, heads_first
from tunefa.runtime.kernel_plan import with_contiguous_rows

_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, "
    "Tensor? q_descale, Tensor? k_descale, Tensor? v_descale"
)
_OPTIONS = (
    "bool causal, int? window_left, int? window_right, str layout, float? softcap, "
    "SymInt max_seqlen_q, SymInt max_seqlen_k, float? scale"
)
_COUNT = _TENSORS.count(",") + 1
"""The number of arguments that are tensors."""
_FORWARD = f"({_TENSORS}, {_OPTIONS})"
_BACKWARD = f"(Tensor grad_out, Tensor? grad_lse, Tensor out, Tensor lse, {_TENSORS}, {_OPTIONS})"


def flash_attention(
    tensors: Tensors, options: Options, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Calls the op with the arguments of `Runtime.ready`; returns (out, lse)."""
    q, k, v, cu_seqlens, descales = tensors
    out, lse = torch.ops.tunefa.flash_attention.default(
        *(q, k, v, *(cu_seqlens or (None, None)), *(descales or (None, None, None))),
        *options,
        scale,
    )
    return out, lse


def _split(arguments: Sequence[Any]) -> tuple[Tensors, Options, float | None]:
    """Turns the op's arguments into those of `Runtime.ready`."""
    q, k, v, starts_q, starts_k, *descales = arguments[:_COUNT]
    given = tuple(descales) if any(each is not None for each in descales) else ()
    cu_seqlens = None if starts_q is None else (starts_q, starts_k)
    *options, scale = arguments[_COUNT:]
    return Tensors(q, k, v, cu_seqlens, given), Options(*options), scale


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    tensors, options, scale = _split(arguments)
    plan, scale = runtime.current().ready(tensors, options, scale)
    return plan.run(tensors, scale)


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    tensors, options, scale = _split(arguments)
    # With a symbolic head_dim the default scale would be symbolic too; no shape depends on it.
    call = Call.of(tensors, options, 1.0 if scale is None else scale)
    return call.new_out(), call.new_lse()


def _backward(
    grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (dq, dk, dv), with the dtypes and strides of `torch.empty_like` of q, k and v."""
    tensors, options, scale = _split(arguments)
    call = Call.of(tensors, options, scale)
    grad_out, out = (heads_first(x, options.layout) for x in (grad_out, out))
    if grad_lse is None and _flash_takes(call) and flash_serves(call.q, call.v, call.scale):
        grads = _flash_gradients(call, out, lse, grad_out)
    else:
        grads = reference.gradients(call, out, lse, grad_out, grad_lse)
    dq, dk, dv = (
        _like(heads_first(grad, options.layout), tensor)
        for grad, tensor in zip(grads, tensors[:3], strict=True)
    )
    return dq, dk, dv


def _backward_fake(
    grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = arguments[:3]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.options = inputs[_COUNT:]
    ctx.save_for_backward(*output, *inputs[:_COUNT])
    ctx.set_materialize_grads(False)  # a gradient of lse needs another formula


def _autograd(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
    rest = (None,) * (_COUNT - 3 + len(ctx.options))
    if grad_out is None and grad_lse is None:
        return None, None, None, *rest
    out, _, q, *_ = ctx.saved_tensors
    if q.dtype == E4M3:
        raise TunefaError(
            f"attention of {E4M3} has no gradient: train in bf16, or run it under torch.no_grad()"
        )
    grads = torch.ops.tunefa.flash_attention_backward.default(
        torch.zeros_like(out) if grad_out is None else grad_out,
        grad_lse,
        *ctx.saved_tensors,
        *ctx.options,
    )
    return *grads, *rest


def flash_serves(q: Tensor, v: Tensor, scale: float) -> bool:
    """Whether PyTorch's FlashAttention-2 has a backward pass for such q, v and scale."""
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
    """Whether FlashAttention-2 computes the gradients of this mask: it has no soft-cap, and a
    window of more than seqlen_k keys on one side means all keys there.

    Beyond the diagonal that is right only where there are no more queries than keys. The lengths of
    packed sequences are known on the device only.
    """
    if call.empty or call.softcap is not None:
        return False
    if call.causal or call.band == (None, None):
        return True
    return call.cu_seqlens is None and call.q.shape[2] <= call.k.shape[2]


def _flash_gradients(
    call: Call, out: Tensor, lse: Tensor, grad_out: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs aten::_flash_attention_backward, whose causal and window arguments mean the same.

    Dense `out` and `grad_out` have heads first. Rows that see no key have an lse of -inf, and would
    give NaN there. Dense tensors are passed without these rows; for packed ones, an lse of inf
    makes the probabilities of these rows 0.
    """
    if call.cu_seqlens is not None:
        lse = lse.masked_fill(lse.isneginf(), float("inf"))
        longest = call.options.max_seqlen_q, call.options.max_seqlen_k
        of_packed = (*call.cu_seqlens, *longest)
        grads = _aten_gradients(call, (grad_out.contiguous(), call.q, out), lse, of_packed)
        starts_q, starts_k = call.cu_seqlens
        dq, dk, dv = map(_within, grads, (starts_q, starts_k, starts_k))
        return dq, dk, dv
    first = call.first_row
    of_rows = [x[:, :, first:].transpose(1, 2) for x in (grad_out, call.q, out)]
    sizes = (None, None, of_rows[0].shape[1], call.k.shape[2])
    grads = _aten_gradients(call, of_rows, lse[:, :, first:].contiguous(), sizes)
    dq, dk, dv = (grad.transpose(1, 2) for grad in grads)
    if first:
        dq = torch.cat([dq.new_zeros((*dq.shape[:2], first, dq.shape[3])), dq], dim=2)
    return dq, dk, dv


def _aten_gradients(
    call: Call, of_rows: Sequence[Tensor], lse: Tensor, sizes: tuple[Any, ...]
) -> Sequence[Tensor]:
    """Returns (dq, dk, dv); they and `of_rows` = (grad_out, q, out) are (batch, seqlen, heads,
    head_dim), or packed.

    `sizes` are the op's cu_seqlens, None where dense, and the lengths of the longest sequences. The
    op does not write the gradients of rows and keys that belong to no packed sequence.
    """
    grad_out, q, out = of_rows
    dense = call.cu_seqlens is None
    k, v = (x.transpose(1, 2) if dense else x for x in (call.k, call.v))
    q, k, v = with_contiguous_rows(q, k, v)
    # PyTorch converts them to C's int, which may be too small for a window's number of keys.
    left, right = (None if side is None else min(side, k.shape[-3] - 1) for side in call.band)
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device)
    grads: Sequence[Tensor] = torch.ops.aten._flash_attention_backward.default(
        *(grad_out, q, k, v, out, lse, *sizes),
        *(0.0, call.causal, no_dropout, no_dropout.new_empty(0)),
        scale=call.scale,
        window_size_left=left,
        window_size_right=right,
    )
    return grads


def _within(grad: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Returns `grad` with 0 in the rows that belong to no sequence."""
    row = torch.arange(grad.shape[0], device=grad.device)
    outside = (row < cu_seqlens[0]) | (row >= cu_seqlens[-1])
    return grad.masked_fill(outside[:, None, None], 0.0)


def _like(grad: Tensor, tensor: Tensor) -> Tensor:
    """Returns `grad` with dtype and strides of `torch.empty_like(tensor)`, as the fake op has."""
    made = torch.empty_like(tensor)
    if (grad.dtype, grad.stride()) == (made.dtype, made.stride()):
        return grad
    return made.copy_(grad)


def _register(
    name: str,
    schema: str,
    run: Callable[..., tuple[Tensor, ...]],
    fake: Callable[..., tuple[Tensor, ...]],
) -> Any:
    """Registers the op `tunefa::name`, which changes no argument, and its fake for shapes."""
    op: Any = torch.library.custom_op(f"tunefa::{name}", run, mutates_args=(), schema=schema)
    op.register_fake(fake)
    return op


_register(
    "flash_attention", f"{_FORWARD} -> (Tensor, Tensor)", _forward, _forward_fake
).register_autograd(_autograd, setup_context=_setup_context)
_register(
    "flash_attention_backward",
    f"{_BACKWARD} -> (Tensor, Tensor, Tensor)",
    *(_backward, _backward_fake),
)
