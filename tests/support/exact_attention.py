"""Attention in fp64, by the formulas, of tensors with rows before heads."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def exact(*inputs: Any, **mask: Any) -> tuple[Tensor, Tensor]:
    """`exact_of`, whose arguments come from tables in tests."""
    return exact_of(*inputs, **mask)


def exact_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    sides: tuple[int, int] = (-1, -1),
    scale: float | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of (batch, rows, heads, head_dim) tensors, with masks aligned to the bottom right;
    a negative side of a window is open."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    left, right = sides
    diagonal = k.shape[2] - q.shape[2]
    seen = torch.ones(scores.shape[-2:], dtype=torch.bool)
    if causal or right >= 0:
        seen = seen.tril(diagonal + (0 if causal else right))
    if left >= 0:
        seen = seen.triu(diagonal - left)
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        column = sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    p = scores.softmax(-1).nan_to_num(0.0)[..., : k.shape[2]]
    return (p @ v).transpose(1, 2), scores.logsumexp(-1)


def close(found: Any, right: Any) -> None:
    torch.testing.assert_close(found, right, rtol=1e-4, atol=2e-5, check_dtype=False)
