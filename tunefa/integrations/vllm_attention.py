"""Attention over vLLM's cache with pages: what a batch needs of it, and the calls that compute it.

Nothing here imports vLLM. A batch has the new tokens of its requests one after the other. vLLM puts
requests with few new tokens first, those that decode. They take `decode_attention`, which splits
the keys of a request among SMs, and the rest, prompts and their chunks, `flash_attention_varlen`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime.api_varlen import flash_attention_varlen
from tunefa.runtime.decode import decode_attention


@dataclass
class Prompts:
    """Requests of a batch behind those that decode.

    Their rows begin at `first_row`. cu_seqlens_q, (requests + 1,), begins with 0; seqlens,
    (requests,), counts keys with those of the new tokens; block_table is (requests, pages).
    """

    first_row: int
    cu_seqlens_q: Tensor
    seqlens: Tensor
    block_table: Tensor
    max_seqlen_q: int
    max_seqlen_k: int


@dataclass
class Batch:
    """The data of a batch that attention needs, for all layers with the same pages.

    The first `decodes` requests have `decode_queries` new tokens each; seqlens, (decodes,), and
    block_table, (decodes, pages), are theirs. `rows` counts the new tokens of all requests.
    """

    rows: int
    decodes: int
    decode_queries: int
    seqlens: Tensor
    block_table: Tensor
    prompts: Prompts | None


class Mask(NamedTuple):
    """The settings of a layer for its scores: the number of keys that a query of a layer with a
    window sees, a soft-cap, a factor, and sinks, (heads,) in fp32."""

    window: int | None
    softcap: float | None
    scale: float
    sinks: Tensor | None


def batch_of(common: Any, most_queries: int) -> Batch:
    """Returns the batch that vLLM's CommonAttentionMetadata describes.

    Requests at its front that all have the same number of new tokens, at most `most_queries`,
    decode. Only numbers on the host are looked at, so nothing waits for the device.

    Raises TunefaError where the batch is not causal.
    """
    if common.causal is not True:
        raise TunefaError(
            "the batch is not causal, and tunefa's backend for vLLM has causal attention only: "
            "choose another --attention-backend"
        )
    count, rows = common.num_reqs, common.num_actual_tokens
    decodes, queries = _decodes(common, most_queries)
    seqlens, table = common.seq_lens, common.block_table_tensor
    prompts = None
    first_row = decodes * queries
    if decodes < count and first_row < rows:
        starts = common.query_start_loc[decodes : count + 1]
        prompts = Prompts(
            first_row,
            starts - first_row if first_row else starts,
            seqlens[decodes:count],
            table[decodes:count],
            common.max_query_len,
            common.max_seq_len,
        )
    return Batch(rows, decodes, queries, seqlens[:decodes], table[:decodes], prompts)


def _decodes(common: Any, most_queries: int) -> tuple[int, int]:
    """(requests, queries of each) at the front of a batch, which decode."""
    count, longest = common.num_reqs, common.max_query_len
    if longest <= most_queries and count * longest == common.num_actual_tokens:
        return count, longest  # every batch of a full CUDA graph: requests that fill it have 0 keys
    lengths = common.query_start_loc_cpu[: count + 1].diff().tolist()
    queries = lengths[0] if lengths else 0
    if not 0 < queries <= most_queries:
        return 0, 0
    others = (number for number, length in enumerate(lengths) if length != queries)
    return next(others, count), queries


def halves(kv_cache: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Returns the keys and the values of vLLM's cache, (pages, page_size, heads_kv, head_dim) each.

    vLLM's cache is (pages, heads_kv, page_size, 2 * head_dim), in any arrangement in memory with
    contiguous rows; one in e4m3 has bytes.
    """
    if kv_cache.dtype == torch.uint8:
        kv_cache = kv_cache.view(E4M3)
    rows = kv_cache.transpose(1, 2)
    return rows[..., :head_dim], rows[..., head_dim:]


def attend(q: Tensor, kv_cache: Tensor, batch: Batch, mask: Mask, out: Tensor, layer: Any) -> None:
    """Writes the attention of a batch to `out`.

    q and out are (rows or more, heads, head_dim). `layer` has the factors of a cache in e4m3,
    `_k_scale` and `_v_scale`, which broadcast to (requests, heads_kv). Rows of no request may be
    written or not.
    """
    heads, head_dim = q.shape[1:]
    k, v = halves(kv_cache, head_dim)
    more: dict[str, Any] = mask._asdict()
    if k.dtype == E4M3:
        more |= {"k_descale": layer._k_scale, "v_descale": layer._v_scale}
    if batch.decodes:
        shape = (batch.decodes, batch.decode_queries, heads, head_dim)
        rows = batch.decodes * batch.decode_queries
        own = out[:rows].view(shape)
        new = q[:rows].view(shape)
        decode_attention(new, k, v, batch.seqlens, batch.block_table, out=own, **more)
    if batch.prompts is not None:
        prompts = batch.prompts
        rest = slice(prompts.first_row, batch.rows)
        flash_attention_varlen(
            q[rest],
            k,
            v,
            prompts.cu_seqlens_q,
            max_seqlen_q=prompts.max_seqlen_q,
            max_seqlen_k=prompts.max_seqlen_k,
            block_table=prompts.block_table,
            seqlens_k=prompts.seqlens,
            causal=True,
            out=out[rest],
            **more,
        )


def write(
    k: Tensor, v: Tensor, kv_cache: Tensor, slots: Tensor, factors: tuple[Tensor, Tensor]
) -> None:
    """Writes new keys and values, (rows or more, heads_kv, head_dim), into vLLM's cache.

    slots, (rows,), says where: page * page_size + place; a negative one has no place. Into a cache
    in e4m3 they go divided by the factors of k and v. This is PyTorch, and
    waits for the device.
    """
    places = slots.long()
    given = (places >= 0).nonzero().flatten()
    places = places[given]
    page_size = kv_cache.shape[2]
    pages, places = places // page_size, places % page_size
    for new, cache, factor in zip((k, v), halves(kv_cache, k.shape[-1]), factors, strict=True):
        rows = new[given]
        if cache.dtype == E4M3:
            largest = torch.finfo(E4M3).max
            rows = (rows.float() / factor).clamp(-largest, largest).to(E4M3)
            rows, cache = rows.view(torch.uint8), cache.view(torch.uint8)
        cache[pages, places] = rows.to(cache.dtype)
