"""Stand-ins on the CPU for PyTorch's operators of FlashAttention-2 and cuDNN, which need CUDA.

They compute in fp64, by the formulas, with PyTorch's conventions: axes, masks, and the lse of rows
that see no key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CALLS: list[str] = []
"""The name of every operator that was called."""


@dataclass(frozen=True)
class Mask:
    """The keys that a row sees; a negative side of a window is open."""

    causal: bool
    left: int = -1
    right: int = -1
    top_left: bool = False
    scale: float | None = None

    def probabilities(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor, float]:
        """(probabilities, lse, scale) of tensors with heads first and equally many heads."""
        scale = float(q.shape[-1] ** -0.5) if self.scale is None else self.scale
        scores = q.double() @ k.double().transpose(-1, -2) * scale
        diagonal = 0 if self.top_left else k.shape[-2] - q.shape[-2]
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
        if self.causal or self.right >= 0:
            seen = seen.tril(diagonal + (0 if self.causal else self.right))
        if self.left >= 0:
            seen = seen.triu(diagonal - self.left)
        scores = scores.masked_fill(~seen, -math.inf)
        lse = scores.logsumexp(-1)
        return (scores - lse[..., None]).exp().nan_to_num(0.0), lse, scale

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(out, lse), heads first."""
        k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
        p, lse, _ = self.probabilities(q, k)
        out = (p @ v.double()).to(q.dtype)
        return out, lse.masked_fill(lse.isneginf(), math.inf).float()

    def backward(self, grad: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """(dq, dk, dv), heads first (FlashAttention-2, arXiv:2307.08691, section 2.3.2)."""
        group = q.shape[-3] // k.shape[-3]
        k, v = (x.repeat_interleave(group, -3).double() for x in (k, v))
        p, _, scale = self.probabilities(q, k)
        grad, rows = grad.double(), q.double()
        dp = grad @ v.transpose(-1, -2)
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
        dk, dv = ds.transpose(-1, -2) @ rows, p.transpose(-1, -2) @ grad
        grads = [ds @ k]
        for x in (dk, dv):
            of_groups = x.reshape(*x.shape[:-3], x.shape[-3] // group, group, *x.shape[-2:])
            grads.append(of_groups.sum(-3))
        return tuple(x.to(q.dtype) for x in grads)


def _mask(causal: bool, named: Any) -> Mask:
    sides = (named.get("window_size_left"), named.get("window_size_right"))
    left, right = (-1 if side is None else side for side in sides)
    return Mask(causal, left, right, scale=named.get("scale"))


def _sequences(starts_q: Tensor, starts_k: Tensor) -> Iterator[tuple[slice, slice]]:
    lengths = zip(starts_q.tolist(), starts_k.tolist(), strict=True)
    row, key = next(lengths)
    for next_row, next_key in lengths:
        yield slice(row, next_row), slice(key, next_key)
        row, key = next_row, next_key


def _flash_forward(
    q: Any, k: Any, v: Any, starts_q: Any, starts_k: Any, *rest: Any, **named: Any
) -> Any:
    CALLS.append("_flash_attention_forward")
    mask = _mask(rest[3], named)
    if starts_q is None:
        found, lse = mask.forward(*(x.transpose(1, 2) for x in (q, k, v)))
        out = torch.empty_like(q).copy_(found.transpose(1, 2))
    else:
        out, lse = torch.zeros_like(q), q.new_zeros(q.shape[1], q.shape[0], dtype=torch.float32)
        for rows, keys in _sequences(starts_q, starts_k):
            one = (x.transpose(0, 1) for x in (q[rows], k[keys], v[keys]))
            found, lse[:, rows] = mask.forward(*one)
            out[rows] = found.transpose(0, 1)
    return out, lse, q.new_empty(2, dtype=torch.uint64), q.new_empty(()), q.new_empty(0)


def _flash_backward(
    *arguments: Any, scale: float | None = None, **windows: Any
) -> tuple[Tensor, ...]:
    CALLS.append("_flash_attention_backward")
    grad, q, k, v, _, _, starts_q, starts_k, *rest = arguments
    mask = _mask(rest[3], {"scale": scale, **windows})
    if starts_q is None:
        found = mask.backward(*(x.transpose(1, 2) for x in (grad, q, k, v)))
        return tuple(x.transpose(1, 2) for x in found)
    grads = tuple(map(torch.zeros_like, (q, k, v)))
    for rows, keys in _sequences(starts_q, starts_k):
        one = (x.transpose(0, 1) for x in (grad[rows], q[rows], k[keys], v[keys]))
        places = zip(grads, (rows, keys, keys), mask.backward(*one), strict=True)
        for whole, place, part in places:
            whole[place] = part.transpose(0, 1)
    return grads


def _cudnn_forward(q: Any, k: Any, v: Any, *rest: Any, scale: float | None = None) -> Any:
    CALLS.append("_scaled_dot_product_cudnn_attention")
    causal = rest[3] if len(rest) > 3 else False  # aten leaves out defaults at the end
    found, lse = Mask(causal, top_left=True, scale=scale).forward(q, k, v)
    out, seed = torch.empty_like(q).copy_(found), q.new_empty((), dtype=torch.int64)
    return out, lse[..., None], None, None, q.shape[2], k.shape[2], seed, seed.clone(), None


def _cudnn_backward(
    grad: Any, q: Any, k: Any, v: Any, *rest: Any, scale: float | None = None
) -> tuple[Tensor, ...]:
    CALLS.append("_scaled_dot_product_cudnn_attention_backward")
    found = Mask(rest[-1], top_left=True, scale=scale).backward(grad, q, k, v)
    return tuple(torch.empty_like(x).copy_(y) for x, y in zip((q, k, v), found, strict=True))


def _outer_forward(
    q: Any,
    k: Any,
    v: Any,
    dropout: float = 0.0,
    causal: bool = False,
    debug: bool = False,
    *,
    scale: float | None = None,
) -> Any:
    """PyTorch's own, in C++, turns the axes round and calls the inner operator too."""
    inner, sizes = torch.ops.aten._flash_attention_forward.default, (q.shape[2], k.shape[2])
    turned = (x.transpose(1, 2) for x in (q, k, v))
    out, lse, *rest = inner(*turned, None, None, *sizes, dropout, causal, debug, scale=scale)
    return out.transpose(1, 2), lse, None, None, *sizes, *rest


def _outer_backward(*arguments: Any, scale: float | None = None) -> tuple[Tensor, ...]:
    grad, q, k, v, out, *rest = arguments
    inner = torch.ops.aten._flash_attention_backward.default
    made = inner(*(x.transpose(1, 2) for x in (grad, q, k, v, out)), *rest, scale=scale)
    return tuple(x.transpose(1, 2) for x in made)


KERNELS = {
    "_flash_attention_forward": _flash_forward,
    "_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_cudnn_attention": _cudnn_forward,
    "_scaled_dot_product_cudnn_attention_backward": _cudnn_backward,
    "_scaled_dot_product_flash_attention": _outer_forward,
    "_scaled_dot_product_flash_attention_backward": _outer_backward,
}


@contextmanager
def registered() -> Iterator[list[str]]:
    """Registers the stand-ins for tensors on the CPU; `CALLS`, emptied."""
    make: Any = torch.library.Library
    library = make("aten", "IMPL")
    for name, kernel in KERNELS.items():
        library.impl(name, kernel, "CPU")
    CALLS.clear()
    try:
        yield CALLS
    finally:
        library._destroy()
