"""Calls of `decode_attention` on the CPU, and what they should return."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

BATCH, HEADS, HEADS_KV, HEAD_DIM, KEYS = 3, 4, 2, 16, 40


def made(seqlen_q: int = 1, dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, Any]:
    """Arguments of a call whose cache has NaN behind the lengths."""
    torch.manual_seed(seed)
    lengths = torch.tensor([KEYS, 7, 1], dtype=torch.int32)
    cache = torch.randn(2, BATCH, KEYS, HEADS_KV, HEAD_DIM, dtype=dtype)
    for sequence, keys in enumerate(lengths.tolist()):
        cache[:, sequence, keys:] = math.nan
    q = torch.randn(BATCH, seqlen_q, HEADS, HEAD_DIM, dtype=dtype)
    return {"q": q, "k_cache": cache[0], "v_cache": cache[1], "seqlens": lengths}


def in_pages(given: dict[str, Any], page_size: int) -> dict[str, Any]:
    """The same call with a cache in shuffled pages; entries that no key needs point nowhere."""
    pages = math.ceil(KEYS / page_size)
    order = torch.randperm(BATCH * pages + 2)[: BATCH * pages].view(BATCH, pages)
    paged = dict(given, block_table=order.int())
    for name in ("k_cache", "v_cache"):
        cache = torch.full((BATCH * pages + 2, page_size, HEADS_KV, HEAD_DIM), math.nan).double()
        for sequence in range(BATCH):
            for key in range(KEYS):
                page = order[sequence, key // page_size]
                cache[page, key % page_size] = given[name][sequence, key]
        paged[name] = cache
    for sequence, keys in enumerate(given["seqlens"].tolist()):
        paged["block_table"][sequence, math.ceil(keys / page_size) :] = 10**6
    return paged


def expected(given: dict[str, Any], window: int | None = None) -> tuple[Tensor, Tensor]:
    """Computes each row by itself, from the definition."""
    q, lengths = given["q"], given["seqlens"].tolist()
    out = torch.zeros_like(q)
    lse = torch.full((BATCH, HEADS, q.shape[1]), -math.inf, dtype=q.dtype)
    for sequence, keys in enumerate(lengths):
        for row in range(q.shape[1]):
            last = keys - q.shape[1] + row
            first = 0 if window is None else max(0, last - window + 1)
            if last < 0:
                continue
            seen = slice(first, last + 1)
            for head in range(HEADS):
                k, v = (given[name][sequence, seen, head // 2] for name in ("k_cache", "v_cache"))
                scores = k @ q[sequence, row, head] * HEAD_DIM**-0.5
                lse[sequence, head, row] = scores.logsumexp(0)
                out[sequence, row, head] = scores.softmax(0) @ v
    return out, lse
