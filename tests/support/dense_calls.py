"""Dense tensors for calls of attention, and PyTorch's attention of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def tensors(
    heads: int = 4, heads_kv: int = 2, seqlen_q: int = 16, seqlen_k: int = 24, head_dim: int = 32
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(2, seqlen_q, heads, head_dim, generator=generator),
        torch.randn(2, seqlen_k, heads_kv, head_dim, generator=generator),
        torch.randn(2, seqlen_k, heads_kv, head_dim, generator=generator),
    )


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """PyTorch's own, of BSHD tensors, with the bottom-right mask written out."""
    seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool)
    diagonal = k.shape[1] - q.shape[1]
    mask = seen.tril(diagonal) if causal else None
    if mask is not None and window is not None:
        mask = mask.triu(diagonal + 1 - window)
    q, k, v = heads_first(q, k, v)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)
    return out.transpose(1, 2)
