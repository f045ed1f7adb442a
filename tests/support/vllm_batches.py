"""Batches of requests as vLLM describes them, over a cache with pages as vLLM lays it out."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from tests.support.exact_attention import exact


class Sizes(NamedTuple):
    """Sizes of a layer and of its cache."""

    heads: int
    heads_kv: int
    head_dim: int
    page_size: int


SMALL = Sizes(4, 2, 16, 16)
NO_PAGE = 2**30
"""The number behind a request's last page in the block table."""
Lengths = tuple[tuple[int, int], ...]
"""(new tokens, keys with those of the new tokens) of each request."""


def layer(k_scale: float = 1.0, v_scale: float = 1.0, device: str = "cpu") -> Any:
    """The part of vLLM's layer that a backend reads: the factors of its cache."""
    factors = (torch.tensor(each, device=device) for each in (k_scale, v_scale))
    return SimpleNamespace(**dict(zip(("_k_scale", "_v_scale"), factors, strict=True)))


def common(lengths: Lengths, extra_rows: int = 0, sizes: Sizes = SMALL, device: str = "cpu") -> Any:
    """The fields of vLLM's CommonAttentionMetadata, with rows of no request behind the others."""
    rows, keys = (list(each) for each in zip(*lengths, strict=True))
    starts = torch.tensor([0, *rows]).cumsum(0).int()
    page = sizes.page_size
    needed = [math.ceil(each / page) for each in keys]
    table = torch.full((len(rows), max(1, *needed)), NO_PAGE, dtype=torch.int32)
    numbers = 1 + torch.randperm(sum(needed)).int()  # vLLM leaves page 0 to nobody
    slots = []
    for number, count in enumerate(needed):
        first = sum(needed[:number])
        table[number, :count] = numbers[first : first + count]
        places = torch.arange(keys[number] - rows[number], keys[number])
        slots.append(table[number].long()[places // page] * page + places % page)
    slots.append(torch.full((extra_rows,), -1))
    return SimpleNamespace(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(keys).int().to(device),
        num_reqs=len(rows),
        num_actual_tokens=sum(rows) + extra_rows,
        max_query_len=max(rows),
        max_seq_len=max(keys),
        block_table_tensor=table.to(device),
        slot_mapping=torch.cat(slots).to(device),
        causal=True,
    )


def texts(
    lengths: Lengths, dtype: torch.dtype, sizes: Sizes = SMALL, device: str = "cpu"
) -> list[tuple[Tensor, Tensor]]:
    """The keys and values of each request, (keys, heads_kv, head_dim)."""
    return [
        (each[0], each[1])
        for _, keys in lengths
        for each in [torch.randn(2, keys, sizes.heads_kv, sizes.head_dim).to(device, dtype)]
    ]


def empty_cache(
    pages: int,
    dtype: torch.dtype,
    rows_first: bool = False,
    sizes: Sizes = SMALL,
    device: str = "cpu",
) -> Tensor:
    """vLLM's cache, (pages, heads_kv, page_size, 2 * head_dim), NaN where nothing was written.

    rows_first: in memory the slots of a page come before the heads. One in e4m3 has bytes.
    """
    inner = (sizes.heads_kv, sizes.page_size)
    shape = (pages, *(inner[::-1] if rows_first else inner), 2 * sizes.head_dim)
    nan = 0x7F if dtype == torch.uint8 else math.nan
    cache = torch.full(shape, nan, dtype=dtype, device=device)
    return cache.transpose(1, 2) if rows_first else cache


def fill(cache: Tensor, described: Any, kept: list[tuple[Tensor, Tensor]], write: Any) -> None:
    """Writes the keys that were there before the new tokens, by `write(k, v, cache, slots)`."""
    table, starts = described.block_table_tensor.long(), described.query_start_loc_cpu.tolist()
    page = cache.shape[2]
    for number, (k, v) in enumerate(kept):
        places = torch.arange(len(k) - (starts[number + 1] - starts[number]), device=table.device)
        write(k[places], v[places], cache, table[number][places // page] * page + places % page)


def new_rows(described: Any, kept: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The keys and values of the new tokens, with NaN for rows of no request."""
    starts = described.query_start_loc_cpu.tolist()
    made = []
    for each in zip(*kept, strict=True):
        lengths = zip(each, starts, starts[1:], strict=False)
        rows = [x[len(x) - (end - start) :] for x, start, end in lengths]
        extra = described.num_actual_tokens - starts[-1]
        made.append(pad(torch.cat(rows), (0, 0, 0, 0, 0, extra), value=math.nan))
    return made[0], made[1]


def expected(q: Tensor, described: Any, kept: list[tuple[Tensor, Tensor]], **mask: Any) -> Tensor:
    """The attention of the new tokens in fp64, one request after the other."""
    starts = described.query_start_loc_cpu.tolist()
    found = []
    for (k, v), start, end in zip(kept, starts, starts[1:], strict=False):
        own = [x[None].cpu() for x in (q[start:end], k, v)]
        found.append(exact(*own, causal=True, **mask)[0][0])
    return torch.cat(found)
