"""Calls of `flash_attention_varlen` over pages on the device, and whether they are right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

import tunefa
from tunefa.measure.comparison import LSE_TOLERANCE, TOLERANCE
from tunefa.runtime import gathered
from tunefa.runtime.call import PACKED, Options
from tunefa.runtime.prefill_call import PrefillTensors
from tunefa.runtime.prefill_plan import PyTorchPrefillPlan

NO_PAGE = 2**30
"""The number behind a sequence's last page in the block table: reading that page is a fault."""
HEADS, HEADS_KV, DIM, PADDING = 8, 2, 128, 5
Lengths = Sequence[tuple[int, int]]


def paged(
    lengths: Lengths, page_size: int = 16, seed: int = 0, most_keys: int = 0, rows: int = 0
) -> PrefillTensors:
    """Tensors of a call in bf16. Slots and pages of no sequence are NaN, and so are rows of q
    behind the sequences: as many as there have to be for `rows`, at least PADDING."""
    torch.manual_seed(seed)
    kinds: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    used = sum(queries for queries, _ in lengths)
    q = torch.full((max(rows, used + PADDING), HEADS, DIM), torch.nan, **kinds)
    q[:used].normal_()
    columns = -(-max(most_keys, *(keys for _, keys in lengths)) // page_size)
    pages = len(lengths) * columns
    pool = torch.full((2, pages, page_size, HEADS_KV, DIM), torch.nan, **kinds)
    table = torch.randperm(pages, device="cuda").view(len(lengths), columns).int()
    for number, (_, keys) in enumerate(lengths):
        places = torch.arange(keys, device="cuda")
        own = table[number].long()[places // page_size]
        pool[:, own, places % page_size] = torch.randn(2, keys, HEADS_KV, DIM, **kinds)
        table[number, -(-keys // page_size) :] = NO_PAGE
    starts = [*accumulate((queries for queries, _ in lengths), initial=0)]
    numbers = (starts, [keys for _, keys in lengths])
    cu_seqlens, seqlens = (torch.tensor(x, device="cuda", dtype=torch.int32) for x in numbers)
    return PrefillTensors(q, pool[0], pool[1], cu_seqlens, seqlens, table)


def run(tensors: PrefillTensors, **more: Any) -> tuple[Tensor, Tensor]:
    q, k, v, cu_seqlens, seqlens, table, sinks, *_ = tensors
    given: dict[str, Any] = {"causal": True, "max_seqlen_q": 2048, "sinks": sinks, **more}
    found: tuple[Tensor, Tensor] = tunefa.flash_attention_varlen(
        q, k, v, cu_seqlens, block_table=table, seqlens_k=seqlens, return_lse=True, **given
    )
    chosen = tunefa.last_choice()
    assert chosen is not None
    assert is_gathered() or chosen.kernel.startswith("attention_prefill"), chosen
    if gathered.LEAST_ROWS in (0, math.inf):
        assert is_gathered() == (gathered.LEAST_ROWS == 0), chosen
    return found


def is_gathered() -> bool:
    """Whether the last call ran on copies of its keys."""
    chosen = tunefa.last_choice()
    return chosen is not None and "gathered" in chosen.why


def check(tensors: PrefillTensors, found: tuple[Tensor, Tensor], **changes: Any) -> None:
    """Raises AssertionError where a row of a sequence is not near fp64."""
    asked = {"causal": True, "layout": PACKED, "max_seqlen_q": 4096, **changes}
    wide = tensors._replace(q=tensors.q.double(), k=tensors.k.double(), v=tensors.v.double())
    if tensors.sinks is not None:
        wide = wide._replace(sinks=tensors.sinks)
    chosen: Any = None
    right = PyTorchPrefillPlan(chosen, Options(**asked)).run(wide, None, None)
    count = int(tensors.cu_seqlens_q[-1])
    out, right_out = found[0][:count].double(), right[0][:count]
    lse, right_lse = found[1][:, :count].double(), right[1][:, :count]
    seen = right_lse.isfinite()
    assert torch.equal(lse.isneginf(), ~seen)
    assert float((lse - right_lse)[seen].abs().max()) <= LSE_TOLERANCE
    assert not out[~seen.T].any(), "rows that see nothing are 0"
    off, norms = (out - right_out).norm(dim=-1), right_out.norm(dim=-1)
    assert bool((off <= 4 * TOLERANCE["bf16"] * norms + 1e-12).all()), "of each row"
    assert float(off.norm() / norms.norm()) <= TOLERANCE["bf16"], "of all rows"
