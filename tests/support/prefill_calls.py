"""Tensors of calls of packed queries over pages, where only shapes count."""

from __future__ import annotations

import torch

from tunefa.runtime.prefill_call import PrefillTensors


def zeros(
    rows: int, batch: int, heads: int, heads_kv: int, dim: int, pages: int, page: int, columns: int
) -> PrefillTensors:
    """Zeros in bf16: so many pages of `page` keys, and `columns` in a row of the block table."""
    cache = torch.zeros(pages, page, heads_kv, dim).bfloat16()
    return PrefillTensors(
        torch.zeros(rows, heads, dim).bfloat16(),
        cache,
        torch.zeros_like(cache),
        torch.zeros(batch + 1).int(),
        torch.zeros(batch).int(),
        torch.zeros(batch, columns).int(),
    )
