"""Stand-ins for the libraries that kernels over a cache call: they compute in fp64 on the CPU what
the libraries document."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor


def attention(
    q: Tensor, k: Tensor, v: Tensor, scale: float, window: tuple[int | None, int | None]
) -> tuple[Tensor, Tensor]:
    """(out, lse) of one sequence in fp64, (rows, heads, dim) and (heads, rows). A row that sees no
    key has 0 and an lse of inf, as in FlashAttention-2."""
    rows, keys, group = len(q), len(k), q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) * scale
    places = torch.arange(keys) - torch.arange(rows)[:, None] - (keys - rows)
    left, right = window
    hidden = torch.zeros(rows, keys, dtype=torch.bool)
    hidden |= places > (math.inf if right is None or right < 0 else right)
    hidden |= places < (-math.inf if left is None or left < 0 else -left)
    scores = scores.masked_fill(hidden, -math.inf)
    lse = scores.logsumexp(-1)
    out = torch.einsum("hqk,khd->qhd", scores.softmax(-1).nan_to_num(0.0), v)
    return out, lse.masked_fill(lse.isneginf(), math.inf)


def pages_of(cache: Tensor, table: Tensor, keys: int) -> Tensor:
    """The keys or values of a sequence."""
    return cache[table[: math.ceil(keys / cache.shape[1])].long()].flatten(0, 1)[:keys]


def operator(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, rows: int, keys: int,
    dropout: float, causal: bool, debug: bool, *, scale: float, window_size_left: int | None,
    window_size_right: int | None, seqused_k: Tensor, block_table: Tensor | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """aten::_flash_attention_forward on packed sequences, as its documentation says."""
    assert (dropout, debug) == (0.0, False) and (starts_q.diff() == rows).all()
    assert {starts_q.dtype, starts_k.dtype, seqused_k.dtype} == {torch.int32}
    assert window_size_right == (0 if causal else None)
    out, lse = torch.empty_like(q), torch.empty(q.shape[1], len(q))
    for number, used in enumerate(seqused_k.tolist()):
        assert 0 <= used <= keys
        own = slice(*starts_q[number : number + 2].tolist())
        first = int(starts_k[number])
        if block_table is None:
            mine = k[first : first + used], v[first : first + used]
            assert len(mine[0]) == used
        else:
            mine = pages_of(k, block_table[number], used), pages_of(v, block_table[number], used)
        window = window_size_left, window_size_right
        found, lse[:, own] = attention(q[own], *mine, scale, window)
        out[own] = found.to(out.dtype)
    return out, lse, None, None, None  # type: ignore[return-value]


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts them in the places of the libraries."""
    monkeypatch.setattr(torch.ops.aten._flash_attention_forward, "default", operator)
