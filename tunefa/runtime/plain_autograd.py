"""Gradients of calls with plain tensors, around PyTorch's dispatcher.

An op that is registered in Python takes tens of microseconds for each pass. Its formula for
autograd is an autograd function (`make_autograd_impl` in torch/_library/autograd.py), and so is
this one, which runs a call's plan itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import (
    _are_functorch_transforms_active,
    _len_torch_dispatch_stack,
    _set_grad_enabled,
)
from torch._C._functorch import is_functorch_wrapped_tensor as _is_wrapped
from torch._C._functorch import is_legacy_batchedtensor as _is_batched
from torch.autograd import forward_ad
from torch.compiler import is_compiling
from torch.nn import Parameter

from tunefa.measure.attention_inputs import E4M3
from tunefa.measure.gradients import Gradients
from tunefa.runtime import process
from tunefa.runtime.call import Call, Options, Tensors

_PLAIN = frozenset((Tensor, Parameter, type(None)))
_NONE = (None,) * 3
"""The gradients of what is no tensor of the call: its results and what it was run with."""


def attention(tensors: Tensors, options: Options, scale: float | None) -> tuple[Tensor, Tensor]:
    """Returns (out, lse), which have gradients, of a call whose arguments were not checked.

    No mode is active, see `no_mode_is_active`.
    """
    q, k, v, _, _ = tensors
    # The op says that e4m3 has none. It also takes tensors of a transform that has ended.
    if q.dtype is E4M3 or _is_wrapped(q) or _is_wrapped(k) or _is_wrapped(v):
        from tunefa.runtime import ops

        Call.of(tensors, options, scale)
        return ops.flash_attention(tensors, options, scale)
    plan, scale = process.current().ready(tensors, options, scale)
    # The kernel starts before autograd hears of the call: a function's `apply` takes microseconds
    # before it runs anything.
    try:
        _set_grad_enabled(False)  # torch.no_grad() takes five times as long
        results = plan.run(tensors, scale)
    finally:
        _set_grad_enabled(True)
    out, lse = _apply(q, k, v, results, tensors, (options, scale))
    return out, lse


def are_plain(tensors: Sequence[object]) -> bool:
    """Whether none is a tensor of a subclass, which may change what operators do."""
    if _PLAIN.issuperset(map(type, tensors)):
        return True
    return all(type(each) in _PLAIN or not isinstance(each, Tensor) for each in tensors)


def no_mode_is_active() -> bool:
    """Whether nothing watches or changes the calls of PyTorch's operators: no dispatch mode, no
    transform of torch.func and no forward-mode autograd."""
    return (
        _len_torch_dispatch_stack() == 0
        and not _are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


class _Attention(torch.autograd.Function):
    """Gives results that were computed already their gradients."""

    # With a `setup_context`, `apply` would bind the arguments to the signature of `forward`, which
    # takes 20 us.

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, results: tuple[Tensor, Tensor], *call: Any
    ) -> tuple[Tensor, Tensor]:
        # The results come in a tuple, where PyTorch does not take them for inputs: what returned
        # an input would be a view of it.
        tensors, ctx.asked = call
        ctx.save_for_backward(*results, q, k, v, *(tensors.cu_seqlens or ()))
        ctx.set_materialize_grads(False)  # a gradient of lse needs another formula
        return results

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


# What `apply` of the class does after it has looked for transforms and wrapped tensors, which takes
# longer than all else.
_apply: Any = super(torch.autograd.Function, _Attention).apply


def _gradients(
    tensors: Tensors, asked: tuple[Options, float | None], given: Gradients
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (dq, dk, dv), by the op where PyTorch needs one: in a backward pass that is compiled,
    watched or differentiated itself, for tensors of a subclass, and for several gradients at once
    (`is_grads_batched` of torch.autograd.grad), which have no memory to read."""
    is_eager = not (is_compiling() or is_grad_enabled()) and no_mode_is_active()
    if is_eager and are_plain((*given, *tensors[:3])) and not _are_batched(given):
        return process.current().gradients(tensors, *asked, given)
    from tunefa.runtime import ops

    return ops.gradients(tensors, *asked, given)


def _are_batched(given: Gradients) -> bool:
    grad_lse = given.grad_lse
    return _is_batched(given.grad_out) or (grad_lse is not None and _is_batched(grad_lse))
