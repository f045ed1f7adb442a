"""Gradients of calls with plain tensors, around PyTorch's dispatcher.

An op that is registered in Python takes tens of microseconds for each pass. Its formula for
autograd is an autograd function (`make_autograd_impl` in torch/_library/autograd.py), and so is
this one, which runs a call's plan itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from tunefa.measure.gradients import Gradients
from tunefa.runtime import process
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.plan import Plan

_NONE = (None,) * 4
"""The gradients of what is no tensor of the call: the plan and what it is run with."""


def attention(
    plan: Plan, tensors: Tensors, options: Options, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Returns (out, lse), which have gradients, by the plan for a call without descales.

    The scale is one that the plan takes.
    """
    out, lse = _Attention.apply(*tensors[:3], plan, tensors, options, scale)  # type: ignore[no-untyped-call]
    return out, lse


def no_mode_is_active() -> bool:
    """Whether nothing watches or changes the calls of PyTorch's operators: no dispatch mode, no
    transform of torch.func and no forward-mode autograd."""
    return (
        _len_torch_dispatch_stack() == 0
        and not _are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


class _Attention(torch.autograd.Function):
    # With a `setup_context`, `apply` would bind the arguments to the signature of `forward`, which
    # takes 20 us.

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Plan, *call: Any
    ) -> tuple[Tensor, Tensor]:
        tensors, options, scale = call
        out, lse = plan.run(tensors, scale)
        ctx.save_for_backward(out, lse, q, k, v, *(tensors.cu_seqlens or ()))
        ctx.asked = options, scale
        ctx.set_materialize_grads(False)  # a gradient of lse needs another formula
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        grad_out, grad_lse = grads
        if grad_out is None and grad_lse is None:
            return None, None, None, *_NONE
        # Activation checkpointing allows this only once.
        out, lse, q, k, v, *starts = ctx.saved_tensors
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        tensors = Tensors(q, k, v, (starts[0], starts[1]) if starts else None)
        found = _gradients(tensors, ctx.asked, Gradients(out, lse, grad_out, grad_lse))
        return *found, *_NONE


def _gradients(
    tensors: Tensors, asked: tuple[Options, float | None], given: Gradients
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (dq, dk, dv), by the op where PyTorch needs one: in a backward pass that is compiled,
    watched or differentiated itself, and for tensors of a subclass."""
    out, lse, grad_out, grad_lse = given.out, given.lse, given.grad_out, given.grad_lse
    seen = out, lse, grad_out, grad_lse, *tensors[:3]
    is_plain = all([type(each) is Tensor or each is None for each in seen])
    if is_plain and not (is_compiling() or is_grad_enabled()) and no_mode_is_active():
        return process.current().gradients(tensors, *asked, given)
    from tunefa.runtime import ops

    return ops.gradients(tensors, *asked, given)
