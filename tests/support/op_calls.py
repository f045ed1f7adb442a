"""Small inputs for the attention op, and PyTorch's attention of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import tunefa.runtime.ops  # noqa: F401, it registers the op
from tunefa.runtime.call import Window

FORWARD = torch.ops.tunefa.flash_attention.default


NOTHING_ELSE = (None,) * 5
"""Neither cu_seqlens nor descales."""


def inputs(
    shape: tuple[int, ...], layout: str = "bshd", dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v = shape
    generator = torch.Generator().manual_seed(1)

    def normal(heads: int, seqlen: int, dim: int) -> Tensor:
        x = torch.randn(2, seqlen, heads, dim, generator=generator, dtype=dtype)
        return (x if layout == "bshd" else x.transpose(1, 2)).requires_grad_()

    q = normal(heads, seqlen_q, head_dim)
    return q, normal(heads_kv, seqlen_k, head_dim), normal(heads_kv, seqlen_k, head_dim_v)


def sdpa(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: Window = None) -> Tensor:
    """PyTorch's own, of BSHD tensors; a row that sees no key, NaN there, is 0 here."""
    left, right = window if isinstance(window, tuple) else ((window or k.shape[1]) - 1, None)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    diagonal = k.shape[2] - q.shape[2]
    if causal or right is not None:
        seen = seen.tril(diagonal + (0 if causal else right or 0))
    if left is not None:
        seen = seen.triu(diagonal - left)
    some = seen.any(1)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen | ~some[:, None], enable_gqa=True)
    return (out * some[:, None]).transpose(1, 2)


def close(made: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> None:
    for mine, theirs in zip(made, right, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
