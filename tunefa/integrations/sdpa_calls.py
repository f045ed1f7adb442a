"""Calls of PyTorch's attention operators, computed by tunefa.

Each function takes the arguments of one operator of aten and returns what the operator returns, or
None where PyTorch is to compute the call. Results have the shapes, strides and dtypes that PyTorch
expects of them while it compiles (torch/_meta_registrations.py).
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tunefa.integrations import sdpa_choice
from tunefa.integrations.sdpa_choice import Rival
from tunefa.measure.gradients import Gradients
from tunefa.runtime import process
from tunefa.runtime.argument_checks import is_usual
from tunefa.runtime.backward import as_kernels_take_it
from tunefa.runtime.call import PACKED, Options, Tensors

Inputs = tuple[Tensor, Tensor, Tensor]
Results = tuple[Any, ...]

_inside = threading.local()
"""Says whether tunefa is computing a call of this thread. Some of its kernels are libraries, which
call the overridden operators again: these calls are PyTorch's."""


@dataclass(frozen=True)
class Asked:
    """A call of tunefa that stands for a call of an operator."""

    tensors: Tensors
    options: Options
    scale: float | None
    rival: Rival
    """The library that computes the call without tunefa."""
    swapped: bool = False
    """Whether the operator has heads and rows the other way round."""

    @classmethod
    def of_dense(
        cls,
        inputs: Inputs,
        options: Options,
        scale: float | None,
        rival: Rival,
    ) -> Asked:
        """Makes the call of tensors with heads first, if options say so, or with rows first. It
        has the layout in which q lies in memory, as PyTorch expects the output like this."""
        q, bhsd = inputs[0], options.layout == "bhsd"
        swapped = 1 not in q.shape[1:3] and q.stride(1) < q.stride(2)
        options = options._replace(layout="bhsd" if bhsd != swapped else "bshd")
        q, k, v = (x.transpose(1, 2) if swapped else x for x in inputs)
        return cls(Tensors(q, k, v), options, scale, rival, swapped)

    def view(self, x: Tensor) -> Tensor:
        """Returns a tensor with the call's axes of one with the operator's axes, and back."""
        return x.transpose(1, 2) if self.swapped else x

    def forward(self) -> tuple[Tensor, Tensor] | None:
        """Returns (out, lse) with the operator's axes; None where PyTorch computes the call."""
        tensors = self.tensors
        if not _is_possible(self.scale):
            return None
        plan = sdpa_choice.forward_plan(tensors, self.options, self.rival)
        if plan is None:
            return None
        process.current().taken(plan)
        with _computing():
            out, lse = plan.run(tensors, self.scale)
        return self.view(_like(out, tensors.q)), lse

    def backward(self, out: Tensor, lse: Tensor, grad_out: Tensor) -> Results | None:
        """Returns (dq, dk, dv), of outputs with the operator's axes, and with these; None where
        PyTorch computes the call."""
        if not _is_possible(self.scale):
            return None
        options = self.options
        if torch.are_deterministic_algorithms_enabled():
            options = options._replace(deterministic=True)
        given = as_kernels_take_it(Gradients(self.view(out), lse, self.view(grad_out), None))
        plan = sdpa_choice.backward_plan(self.tensors, options, given, self.rival)
        if plan is None:
            return None
        process.current().taken_backward(plan)
        with _computing():
            return tuple(map(self.view, plan.gradients(self.tensors, given, self.scale)))


def flash_forward(*arguments: Any, **named: Any) -> Results | None:
    """Computes aten::_flash_attention_forward: (out, lse, rng_state, unused, debug_mask).

    q, k, v and out are (batch, seqlen, heads, head_dim), or packed. Causal masks and windows are
    aligned to the bottom right.
    """
    q, k, v, starts_q, starts_k, max_q, max_k, dropout, causal, debug_mask = arguments
    asked = _of_flash((q, k, v, starts_q, starts_k, max_q, max_k, dropout, causal), **named)
    made = None if asked is None or debug_mask else asked.forward()
    if made is None:
        return None
    out, lse = made
    if starts_q is not None:  # the lse of a row that sees no key is inf there
        lse = lse.masked_fill_(lse.isneginf(), math.inf)
    seed = q.new_empty(2, dtype=torch.uint64)
    return out, lse, seed, q.new_empty((), dtype=torch.uint64), q.new_empty(0)


def flash_backward(*arguments: Any, **named: Any) -> Results | None:
    """Computes aten::_flash_attention_backward: (dq, dk, dv), of tensors as in `flash_forward`."""
    grad_out, q, k, v, out, lse, *rest = arguments
    asked = _of_flash((q, k, v, *rest[:6]), **named)
    if asked is None:
        return None
    if asked.options.layout == PACKED:
        lse = lse.masked_fill(lse.isposinf(), -math.inf)
    return asked.backward(out, lse, grad_out)


def cudnn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_bias: Tensor | None,
    compute_log_sumexp: bool,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> Results | None:
    """Computes aten::_scaled_dot_product_cudnn_attention: (out, lse, cum_seq_q, cum_seq_k, max_q,
    max_k, seed, offset, debug_mask).

    q, k, v and out are (batch, heads, seqlen, head_dim). lse is (batch, heads, seqlen_q, 1). Causal
    masks are aligned to the top left.
    """
    asked = _of_cudnn((q, k, v), attn_bias, dropout_p, is_causal, scale)
    made = None if asked is None or return_debug_mask else asked.forward()
    if made is None:
        return None
    out, lse = made
    seed, offset = (q.new_empty((), dtype=torch.int64) for _ in range(2))
    return out, lse[..., None], None, None, q.shape[2], k.shape[2], seed, offset, None


def cudnn_backward(*arguments: Any, scale: float | None = None) -> Results | None:
    """Computes aten::_scaled_dot_product_cudnn_attention_backward: (dq, dk, dv), of tensors as in
    `cudnn_forward`."""
    grad_out, q, k, v, out, lse, _, _, attn_bias, _, _, _, _, dropout, causal = arguments
    asked = _of_cudnn((q, k, v), attn_bias, dropout, causal, scale)
    return None if asked is None else asked.backward(out, lse.reshape(q.shape[:3]), grad_out)


SERVED: Mapping[str, Callable[..., Results | None]] = {
    "_flash_attention_forward": flash_forward,
    "_flash_attention_backward": flash_backward,
    "_scaled_dot_product_cudnn_attention": cudnn_forward,
    "_scaled_dot_product_cudnn_attention_backward": cudnn_backward,
}
"""The function for each operator of `tunefa.integrations.sdpa.OPERATORS`."""


def _of_flash(
    arguments: tuple[Any, ...],
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    **others: Any,
) -> Asked | None:
    """The call behind a call of FlashAttention-2's operators; None where PyTorch computes it.

    `others` are arguments that newer versions of PyTorch have, and tunefa has not.
    """
    q, k, v, starts_q, starts_k, max_q, max_k, dropout, causal = arguments
    if dropout != 0.0 or any(other is not None for other in others.values()):
        return None
    sides = (window_size_left, window_size_right)
    left, right = (None if side is None or side < 0 else side for side in sides)
    if causal or right == 0:
        causal, right = True, None
    scale = _usual(scale, q)
    if starts_q is not None and starts_k is not None:
        options = Options(causal, left, right, PACKED, None, max_q, max_k)
        return Asked(Tensors(q, k, v, (starts_q, starts_k)), options, scale, "fa2")
    if starts_q is not None or starts_k is not None or (causal and q.shape[1] > k.shape[1]):
        return None  # with fewer keys, PyTorch's lse of rows that see none is another
    return Asked.of_dense((q, k, v), Options(causal, left, right, "bshd"), scale, "fa2")


def _of_cudnn(
    inputs: Inputs,
    attn_bias: Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> Asked | None:
    """The call behind a call of cuDNN's operators; None where PyTorch computes it."""
    q, k, _ = inputs
    if attn_bias is not None or dropout != 0.0:
        return None
    if causal and q.shape[2] != k.shape[2]:
        return None  # the mask is aligned to the top left
    if not torch._C._get_flash_sdp_enabled():
        return None  # the user asks for cuDNN, by torch.nn.attention.sdpa_kernel
    return Asked.of_dense(inputs, Options(causal, layout="bhsd"), _usual(scale, q), "cudnn")


def _usual(scale: float | None, q: Tensor) -> float | None:
    """The scale; None for the default one, which PyTorch may round in another way."""
    default: float = q.shape[-1] ** -0.5
    return None if scale is None or math.isclose(scale, default, rel_tol=1e-12) else scale


def _is_possible(scale: float | None) -> bool:
    """Whether a call may be tunefa's at all."""
    return not getattr(_inside, "now", False) and is_usual(scale)


@contextlib.contextmanager
def _computing() -> Iterator[None]:
    """Leaves to PyTorch what this thread calls meanwhile."""
    _inside.now = True
    try:
        yield
    finally:
        _inside.now = False


def _like(out: Tensor, q: Tensor) -> Tensor:
    """Returns the output with the strides of `torch.empty_like(q)`. It has them already unless q's
    axes lie in memory in another order than in the layout."""
    steps = [step for size, step in zip(q.shape, q.stride(), strict=True) if size > 1]
    if steps == sorted(steps, reverse=True) or out.shape != q.shape:
        return out
    return torch.empty_like(q).copy_(out)
