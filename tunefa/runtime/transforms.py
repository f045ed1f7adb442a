"""Attention under the transforms of torch.func (grad, vjp, vmap) and under forward-mode autograd.

Ops that are registered in Python have no rules for them, but autograd functions may.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

from tunefa.errors import TunefaError
from tunefa.runtime import ops
from tunefa.runtime.call import PACKED, Options, Tensors
from tunefa.runtime.op_arguments import OUTPUTS_COUNT, flat, split


def active() -> bool:
    """Whether attention must be called by this module's function, not as an op."""
    if forward_ad._current_level >= 0:
        return True
    transform = _functorch.peek_interpreter_stack()
    # Ops have a rule for functionalize, and autograd functions have none.
    return transform is not None and transform.key() != _functorch.TransformType.Functionalize


def attention(tensors: Tensors, options: Options, scale: float | None) -> tuple[Tensor, Tensor]:
    """Returns (out, lse), for the arguments of `Runtime.ready`.

    Raises TunefaError for forward-mode derivatives, also second derivatives, and for vmap of packed
    sequences.
    """
    ops.tell_pytorch()
    out, lse = _Attention.apply(*flat(tensors, options, scale))  # type: ignore[no-untyped-call]
    return out, lse


class _Attention(torch.autograd.Function):
    """The op `flash_attention`, with its rules."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.tunefa.flash_attention.default(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ops.setup_context(ctx, inputs, output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_out, grad_lse = grads
        return ops.autograd(ctx, grad_out, grad_lse, _Gradients.apply)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        made = _Attention.apply(*_folded(info.batch_size, in_dims, arguments, 0))  # type: ignore[no-untyped-call]
        return _unfolded(info.batch_size, made)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise _no_forward_mode()


class _Gradients(torch.autograd.Function):
    """The op `flash_attention_backward`, with its rules."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.tunefa.flash_attention_backward.default(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise ops.no_second_derivative()

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        folded = _folded(info.batch_size, in_dims, arguments, OUTPUTS_COUNT)
        return _unfolded(info.batch_size, _Gradients.apply(*folded))  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise _no_forward_mode()


def _folded(
    size: int, in_dims: Sequence[int | None], arguments: Sequence[Any], before: int
) -> list[Any]:
    """Returns the arguments with the mapped axis, of that size, as a part of the batch.

    `before` tensors come before the arguments of the call.
    """
    _, options, _ = split(arguments[before:])
    if options.layout == PACKED:
        raise TunefaError(
            "torch.vmap does not map flash_attention_varlen: call it once for each, or append the "
            "sequences and their cu_seqlens"
        )
    made = []
    for x, axis in zip(arguments, in_dims, strict=True):
        if isinstance(x, Tensor):
            x = x.expand(size, *x.shape) if axis is None else x.movedim(axis, 0)
            x = x.flatten(0, 1)
        made.append(x)
    return made


def _unfolded(size: int, made: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Returns the results with the mapped axis as their first, and the places of that axis."""
    if size == 0:
        raise TunefaError("torch.vmap maps over an axis of size 0: give it 1 or more")
    outs = tuple(x.reshape(size, x.shape[0] // size, *x.shape[1:]) for x in made)
    return outs, (0,) * len(outs)


def _no_forward_mode() -> TunefaError:
    return TunefaError(
        "attention has no forward-mode derivative (torch.func.jvp, jacfwd, hessian): use reverse "
        "mode, such as torch.func.vjp or jacrev, or scaled_dot_product_attention with "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    )
