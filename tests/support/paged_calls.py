"""Calls of `flash_attention_varlen` over pages on the CPU, and what they should return."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

HEADS, HEADS_KV, HEAD_DIM = 4, 2, 16
LENGTHS = ((5, 9), (0, 4), (1, 33), (12, 12), (3, 0), (7, 2))
"""(queries, keys) of sequences: more keys than queries, fewer, and none of one or the other."""
NO_PAGE = 10**6
"""The number behind a sequence's last page in the block table: no page has it."""


def made(
    lengths: tuple[tuple[int, int], ...] = LENGTHS,
    page_size: int = 4,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> dict[str, Any]:
    """Arguments of a call, without the mask. Pages are in random order, slots and pages of no
    sequence are NaN, and two rows of q behind the sequences too."""
    torch.manual_seed(seed)
    rows, keys = (list(each) for each in zip(*lengths, strict=True))
    most = max(1, max(math.ceil(each / page_size) for each in keys))
    table = torch.full((len(lengths), most), NO_PAGE, dtype=torch.int32)
    needed = [math.ceil(each / page_size) for each in keys]
    order = torch.randperm(sum(needed) + 3).int()
    cache = torch.full((2, len(order), page_size, HEADS_KV, HEAD_DIM), math.nan, dtype=dtype)
    used = 0
    for number, pages in enumerate(needed):
        table[number, :pages] = order[used : used + pages]
        used += pages
        for key in range(keys[number]):
            page = table[number, key // page_size]
            cache[:, page, key % page_size] = torch.randn(2, HEADS_KV, HEAD_DIM, dtype=dtype)
    q = torch.randn(sum(rows) + 2, HEADS, HEAD_DIM, dtype=dtype)
    q[sum(rows) :] = math.nan
    return {
        "q": q,
        "k": cache[0],
        "v": cache[1],
        "cu_seqlens_q": torch.tensor([0, *rows]).cumsum(0).int(),
        "max_seqlen_q": max(rows),
        "block_table": table,
        "seqlens_k": torch.tensor(keys).int(),
    }


def sequence(given: dict[str, Any], number: int) -> tuple[slice, Tensor, Tensor]:
    """The rows of a sequence in q, and its keys and values: (keys, heads_kv, head_dim)."""
    rows = slice(*given["cu_seqlens_q"][number : number + 2].tolist())
    keys, page_size = int(given["seqlens_k"][number]), given["k"].shape[1]
    places = torch.arange(keys)
    pages = given["block_table"][number].long()[places // page_size]
    k, v = (given[name][pages, places % page_size] for name in "kv")
    return rows, k, v


def expected(
    given: dict[str, Any], left: int | None = None, right: int | None = 0
) -> tuple[Tensor, Tensor]:
    """(out, lse) of the rows of sequences, each row by itself from the definition, with a window of
    `left` keys before the diagonal and `right` beyond it, None for all."""
    q, scale = given["q"], given["q"].shape[-1] ** -0.5
    count = int(given["cu_seqlens_q"][-1])
    out = q.new_zeros(count, q.shape[1], given["v"].shape[-1])
    lse = q.new_full((q.shape[1], count), -math.inf)
    for number in range(len(given["seqlens_k"])):
        rows, k, v = sequence(given, number)
        for row in range(rows.start, rows.stop):
            diagonal = len(k) - (rows.stop - row)
            first = 0 if left is None else max(0, diagonal - left)
            last = len(k) if right is None else min(len(k), diagonal + right + 1)
            if first >= last:
                continue
            for head in range(q.shape[1]):
                head_kv = head * k.shape[1] // q.shape[1]
                scores = k[first:last, head_kv] @ q[row, head] * scale
                lse[head, row] = scores.logsumexp(0)
                out[row, head] = scores.softmax(0) @ v[first:last, head_kv]
    return out, lse


def found(given: dict[str, Any], **more: Any) -> tuple[Tensor, Tensor]:
    """(out, lse) of the rows of sequences, by the call."""
    import tunefa

    out, lse = tunefa.flash_attention_varlen(**given, return_lse=True, **more)
    count = int(given["cu_seqlens_q"][-1])
    return out[:count], lse[:, :count]
