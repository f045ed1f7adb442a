"""Packed sequences for tests."""

from __future__ import annotations

import torch
from torch import Tensor


def starts(*seqlens: int) -> Tensor:
    """cu_seqlens of sequences that are so long."""
    return torch.tensor([0, *seqlens]).cumsum(0).int()
