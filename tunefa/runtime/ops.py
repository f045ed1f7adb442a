"""The op `tunefa::flash_attention` of PyTorch's dispatcher, for autograd and torch.compile.

It serves dense and packed sequences; tensors that a call does not have are None.

The backward pass is an op of its own, so that AOTAutograd never traces into it. What computes it is
chosen like what computes the forward pass, when it runs: see `tunefa.runtime.backward`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from tunefa.errors import TunefaError
from tunefa.measure.attention_inputs import E4M3
from tunefa.measure.gradients import Gradients
from tunefa.runtime import process as runtime
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.op_arguments import COUNT, OPTIONS, OUTPUTS, TENSORS, flat, split

_FORWARD = f"({TENSORS}, {OPTIONS})"
_BACKWARD = f"({OUTPUTS}, {TENSORS}, {OPTIONS})"


def flash_attention(
    tensors: Tensors, options: Options, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Calls the op with the arguments of `Runtime.ready`; returns (out, lse)."""
    if not is_compiling():
        tell_pytorch()
    out, lse = torch.ops.tunefa.flash_attention.default(*flat(tensors, options, scale))
    return out, lse


def gradients(
    tensors: Tensors, options: Options, scale: float | None, given: Gradients
) -> tuple[Tensor, Tensor, Tensor]:
    """Calls the op of gradients with the arguments of `Runtime.gradients`; returns (dq, dk, dv)."""
    if not is_compiling():
        tell_pytorch()
    outputs = given.grad_out, given.grad_lse, given.out, given.lse
    dq, dk, dv = _call_backward(*outputs, *flat(tensors, options, scale))
    return dq, dk, dv


def tell_pytorch() -> None:
    """Gives the ops' formulas to PyTorch's FLOP counter, and their sharding rules to its DTensor.

    It imports neither of them: what the process has not imported has nothing to be told.
    """
    if "torch.utils.flop_counter" in sys.modules:
        from tunefa.runtime import flop_formulas

        flop_formulas.teach_active_counters()
    if "torch.distributed.tensor" in sys.modules:
        from tunefa.runtime import sharding

        sharding.register()


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    tensors, options, scale = split(arguments)
    plan, scale = runtime.current().ready(tensors, options, scale)
    return plan.run(tensors, scale)


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    tensors, options, scale = split(arguments)
    # With a symbolic head_dim the default scale would be symbolic too; no shape depends on it.
    call = Call.of(tensors, options, 1.0 if scale is None else scale)
    return call.new_out(), call.new_lse()


def _backward(
    grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (dq, dk, dv), with the dtypes and strides of `torch.empty_like` of q, k and v."""
    tensors, options, scale = split(arguments)
    given = Gradients(out, lse, grad_out, grad_lse)
    return runtime.current().gradients(tensors, options, scale, given)


def _backward_fake(
    grad_out: Tensor, grad_lse: Tensor | None, out: Tensor, lse: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = arguments[:3]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keeps in `ctx` what `autograd` needs."""
    ctx.options = inputs[COUNT:]
    ctx.save_for_backward(*output, *inputs[:COUNT])
    ctx.set_materialize_grads(False)  # a gradient of lse needs another formula


def no_second_derivative() -> TunefaError:
    """Returns the error for the gradient of a gradient."""
    return TunefaError(
        "attention has no second derivative: call scaled_dot_product_attention within "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH), which PyTorch differentiates twice"
    )


def _call_backward(*arguments: Any) -> Any:
    return torch.ops.tunefa.flash_attention_backward.default(*arguments)


def _no_second_derivative(ctx: Any, *grads: Any) -> None:
    raise no_second_derivative()


def autograd(
    ctx: Any,
    grad_out: Tensor | None,
    grad_lse: Tensor | None,
    backward: Callable[..., Any] = _call_backward,
) -> tuple[Any, ...]:
    """Returns the gradients of the op's arguments; `backward` calls the op for those of q, k, v."""
    rest = (None,) * (COUNT - 3 + len(ctx.options))
    if grad_out is None and grad_lse is None:
        return None, None, None, *rest
    saved = ctx.saved_tensors  # activation checkpointing allows this only once
    out, _, q, *_ = saved
    if q.dtype == E4M3:
        raise TunefaError(
            f"attention of {E4M3} has no gradient: train in bf16, or run it under torch.no_grad()"
        )
    grads = backward(
        torch.zeros_like(out) if grad_out is None else grad_out,
        grad_lse,
        *saved,
        *ctx.options,
    )
    return *grads, *rest


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
).register_autograd(autograd, setup_context=setup_context)
_register(
    "flash_attention_backward",
    f"{_BACKWARD} -> (Tensor, Tensor, Tensor)",
    *(_backward, _backward_fake),
).register_autograd(_no_second_derivative)
tell_pytorch()  # a compiled call does not, and may be the first
