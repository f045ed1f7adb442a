"""Mask and score functions for FlexAttention, as programs have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

HEADS, HEADS_KV, SEQLEN, HEAD_DIM = 16, 4, 4096, 64
LENGTHS = (700, 1400, 300, 1696)
"""The documents of the call on a CUDA device."""


def documents(lengths: tuple[int, ...], device: str = "cpu") -> Callable[..., Tensor]:
    """A mask function: a row sees the keys of its own document up to itself."""
    number = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(device)

    def mask_mod(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (number[i] == number[j]) & (i >= j)

    return mask_mod


def alibi(heads: int, device: str = "cpu") -> Callable[..., Tensor]:
    """A score function: a head's slope times the distance is taken from the score."""
    slopes = torch.exp2(-8.0 * torch.arange(1, heads + 1, device=device) / heads)

    def score_mod(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - slopes[head] * (i - j)

    return score_mod


def arguments() -> tuple[Any, ...]:
    """q, k and v on a CUDA device, with gradients, a score function and a block mask; the same in
    each process."""
    chance = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(1, heads, SEQLEN, HEAD_DIM, device="cuda", generator=chance)
        .bfloat16()
        .requires_grad_()
        for heads in (HEADS, HEADS_KV, HEADS_KV)
    )
    mask = documents(LENGTHS, "cuda")
    block_mask = create_block_mask(mask, None, None, SEQLEN, SEQLEN, device="cuda")
    return q, k, v, alibi(HEADS, "cuda"), block_mask


def step(attend: Any, given: tuple[Any, ...], **more: Any) -> tuple[Tensor, ...]:
    """The output, and the gradients of q, k and v."""
    out = attend(*given, enable_gqa=True, **more)
    return out.detach(), *torch.autograd.grad(out, given[:3], torch.ones_like(out))
