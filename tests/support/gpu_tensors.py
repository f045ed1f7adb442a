"""Tensors for tests that need a GPU."""

from __future__ import annotations

import torch
from torch import Tensor


def inputs(seqlen_q: int, seqlen_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v on the GPU: BSHD, batch 2, 8 heads on 2, head_dim 64, bf16."""

    def normal(heads: int, seqlen: int) -> Tensor:
        return torch.randn(2, seqlen, heads, 64, device="cuda", dtype=torch.bfloat16)

    return normal(8, seqlen_q), normal(2, seqlen_k), normal(2, seqlen_k)
