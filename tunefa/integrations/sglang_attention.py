"""Attention over SGLang's pools: the pages of a batch, and the calls that compute it.

Nothing here imports SGLang. Its cache has a place, a slot, for each token, and a table says in
which slots the tokens of a request are. Slots of a page follow one another, so every page_size-th
entry of the table gives the number of a page. Models in which some layers have a window may keep
these layers' keys in a second, smaller pool, with a map from the slots of the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime.api_varlen import flash_attention_varlen
from tunefa.runtime.decode import decode_attention


@dataclass
class Pages:
    """The parts of a batch that attention needs, for all layers.

    seqlens, (requests,) in int32, counts the keys of each request with those of its new tokens.
    table and sliding_table, (requests, pages) in int32, are the pages of layers of the first and
    of the second pool; sliding_slots, (new tokens,), is where the second has new keys. The last two
    are None where there is one pool. cu_seqlens_q, (requests + 1,), and the longest lengths are
    those of prompts; where requests decode, cu_seqlens_q is None.
    """

    seqlens: Tensor
    table: Tensor
    sliding_table: Tensor | None = None
    sliding_slots: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    max_seqlen_q: int = 1
    max_seqlen_k: int = 1


class Pool(NamedTuple):
    """The place of keys: the slots of each request's tokens, (requests, tokens) in int32; the
    tokens of a page; and the map to the slots of the second pool, None where there is one pool."""

    slots: Tensor
    page_size: int
    to_sliding: Tensor | None

    @property
    def most_pages(self) -> int:
        """The pages of the longest request that the table of slots has places for."""
        return -(-self.slots.shape[1] // self.page_size)

    def new_pages(self, requests: int, pages: int, tokens: int = 0) -> Pages:
        """Returns Pages whose tensors are uninitialised; what is behind a request's last page is
        not read."""

        def table() -> Tensor:
            return self.slots.new_empty(requests, pages, dtype=torch.int32)

        made = Pages(self.slots.new_empty(requests, dtype=torch.int32), table())
        if self.to_sliding is not None:
            made.sliding_table = table()
            made.sliding_slots = self.slots.new_empty(tokens, dtype=torch.int64)
        return made

    def fill(self, pages: Pages, batch: Any) -> None:
        """Writes lengths and page numbers of a batch, SGLang's ForwardBatch, to `pages`.

        Columns up to the longest request of the batch are written, or all where SGLang does not say
        on the host how long it is. Nothing waits for the device.
        """
        pages.seqlens.copy_(batch.seq_lens)
        tokens = min(_longest(batch, self.slots.shape[1]), pages.table.shape[1] * self.page_size)
        slots = self.slots[:, : tokens : self.page_size][batch.req_pool_indices.long()]
        columns = slice(slots.shape[1])
        pages.table[:, columns] = slots // self.page_size
        if self.to_sliding is None:
            return
        assert pages.sliding_table is not None and pages.sliding_slots is not None
        # A slot whose key has left the window has no place in the second pool.
        sliding = self.to_sliding[slots.long()].clamp_(min=0)
        pages.sliding_table[:, columns] = sliding // self.page_size
        if batch.out_cache_loc is not None:
            own = self.to_sliding[batch.out_cache_loc.long()]
            pages.sliding_slots[: len(own)] = own


def prompts(pool: Pool, batch: Any) -> Pages:
    """Returns the pages of a batch of prompts and their chunks, among which requests may decode."""
    longest = _longest(batch, pool.slots.shape[1])
    lengths = batch.extend_seq_lens
    tokens = 0 if batch.out_cache_loc is None else len(batch.out_cache_loc)
    pages = pool.new_pages(len(lengths), max(1, -(-longest // pool.page_size)), tokens)
    pool.fill(pages, batch)
    pages.cu_seqlens_q = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    pages.max_seqlen_q = max(batch.extend_seq_lens_cpu)
    pages.max_seqlen_k = longest
    return pages


def decodes(pool: Pool, batch: Any) -> Pages:
    """Returns the pages of a batch of requests with one new token each.

    The table has the same width in all batches, so that the number of splits of a request's keys,
    and with it the bits of a result, do not depend on the batch.
    """
    pages = pool.new_pages(len(batch.seq_lens), pool.most_pages, len(batch.seq_lens))
    pool.fill(pages, batch)
    return pages


def _longest(batch: Any, most: int) -> int:
    """The keys of the longest request, or `most` where they are known on the device only."""
    known = batch.seq_lens_cpu
    return most if known is None else min(most, int(known.max()))


def in_pages(buffer: Tensor, page_size: int) -> Tensor:
    """Returns a layer's keys or values as (pages, page_size, heads_kv, head_dim).

    SGLang has (slots, heads_kv, head_dim), or with SGLANG_USE_HND_KVCACHE (pages, heads_kv,
    page_size, head_dim).
    """
    if buffer.dim() == 4:
        return buffer.transpose(1, 2)
    return buffer.view(-1, page_size, *buffer.shape[1:])


def attend(
    q: Tensor, cache: tuple[Tensor, Tensor], pages: Pages, sliding: bool, options: dict[str, Any]
) -> None:
    """Writes the attention of a batch to options["out"].

    q and out are (new tokens or more, heads, head_dim), the cache is keys and values in pages.
    `sliding` says that they are in the second pool. The other options are those of tunefa's calls.
    """
    k, v = cache
    table = pages.sliding_table if sliding else pages.table
    assert table is not None, "a layer of the second pool came with a batch of one pool"
    if k.dtype != E4M3:
        options = {name: each for name, each in options.items() if "descale" not in name}
    if pages.cu_seqlens_q is None:
        rows = len(pages.seqlens)
        own = options | {"out": options["out"][:rows, None]}
        decode_attention(q[:rows, None], k, v, pages.seqlens, table, **own)
        return
    flash_attention_varlen(
        q,
        k,
        v,
        pages.cu_seqlens_q,
        max_seqlen_q=pages.max_seqlen_q,
        max_seqlen_k=pages.max_seqlen_k,
        block_table=table,
        seqlens_k=pages.seqlens,
        **options,
    )
