"""The device code of attention_decode_mla_triton.py, which describes the algorithm."""

import math

import triton
import triton.language as tl
from tunefa.kernels.triton.attention_decode import (
    _kept_row,
    _keys_of_split,
    _load_keys,
    _split_of,
    _splits,
)

LN_2 = tl.constexpr(math.log(2.0))
IS_COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
"""The interpreter has no launches that depend on one another."""


@triton.jit
def attention_decode_mla(
    q_ptr, kv_ptr, out_ptr, lse_ptr, seqlens_ptr, table_ptr, partial_ptr, partial_lse_ptr,
    q_batch, q_head, q_row, kv_page, kv_head, kv_slot, o_batch, o_head, o_row,
    table_row, batch, heads_kv, seqlen_q, most_keys, row_tiles, splits_kept, min_split_keys,
    max_splits, scale_log2,
    LATENT: tl.constexpr, ROPE: tl.constexpr, PAD_LATENT: tl.constexpr, PAD_ROPE: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SWAP_AB: tl.constexpr, DEPENDENT_LAUNCH: tl.constexpr,
):  # fmt: skip
    """Computes splits: one after the other, as many CTAs apart as there are.

    Tiles of the same keys have neighbouring numbers, so that one of them finds the keys in the L2
    cache. The rest is as in `attention_decode`.
    """
    if DEPENDENT_LAUNCH and IS_COMPILED:
        tl.extra.cuda.gdc_launch_dependents()
    tiles_here = heads_kv * row_tiles
    for item in range(tl.program_id(0), batch * splits_kept * tiles_here, tl.num_programs(0)):
        sequence, split = _split_of(
            item // tiles_here, seqlens_ptr, batch, seqlen_q, most_keys, 0, min_split_keys,
            max_splits, False, BLOCK_N)  # fmt: skip
        if sequence < batch:
            head = item % tiles_here // row_tiles
            kv = kv_ptr + head.to(tl.int64) * kv_head
            if PAGE_SIZE == 0:
                kv += sequence.to(tl.int64) * kv_page
            _attend_split(
                q_ptr + sequence.to(tl.int64) * q_batch, q_head, q_row, kv, kv_page, kv_slot,
                out_ptr + sequence.to(tl.int64) * o_batch, o_head, o_row, lse_ptr,
                tl.minimum(tl.load(seqlens_ptr + sequence), most_keys),
                table_ptr + sequence.to(tl.int64) * table_row, partial_ptr, partial_lse_ptr,
                sequence, split, head, item % row_tiles, heads_kv, seqlen_q, splits_kept,
                min_split_keys, max_splits, scale_log2, LATENT, ROPE, PAD_LATENT, PAD_ROPE, GROUP,
                CAUSAL, PAGE_SIZE, BLOCK_M, BLOCK_N, SWAP_AB)  # fmt: skip


@triton.jit
def _attend_split(
    q_ptr, q_head, q_row, kv_ptr, kv_page, kv_slot, out_ptr, o_head, o_row, lse_ptr, keys,
    table_ptr, partial_ptr, partial_lse_ptr, sequence, split, head_kv, row_tile, heads_kv, seqlen_q,
    splits_kept, min_split_keys, max_splits, scale_log2,
    LATENT: tl.constexpr, ROPE: tl.constexpr, PAD_LATENT: tl.constexpr, PAD_ROPE: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SWAP_AB: tl.constexpr,
):  # fmt: skip
    """Attends BLOCK_M query rows of one KV head to one split of a sequence of `keys` keys."""
    rows = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = rows // GROUP
    heads = head_kv * GROUP + rows % GROUP
    real = queries < seqlen_q
    q_rows = q_ptr + queries.to(tl.int64) * q_row + heads.to(tl.int64) * q_head
    q_latent = _load_rows(q_rows, real, LATENT, PAD_LATENT)
    q_rope = _load_rows(q_rows + LATENT, real, ROPE, PAD_ROPE)
    each = _keys_of_split(keys, min_split_keys, max_splits, BLOCK_N)
    splits = _splits(keys, min_split_keys, max_splits, BLOCK_N)
    begin = split * each
    end = tl.minimum(begin + each, keys)
    diagonal = keys - seqlen_q + queries  # the last key of a causal row
    acc, row_max, row_sum = _key_blocks(
        q_latent, q_rope, kv_ptr, kv_page, kv_slot, table_ptr, begin, end, diagonal, scale_log2,
        LATENT, ROPE, PAD_LATENT, PAD_ROPE, CAUSAL, PAGE_SIZE, BLOCK_M, BLOCK_N, SWAP_AB,
    )  # fmt: skip
    seen = row_sum > 0.0
    acc = acc / _of_rows(tl.where(seen, row_sum, 1.0), SWAP_AB)
    lse = tl.where(seen, row_max + tl.log2(row_sum), float("-inf"))
    cols = _of_columns(tl.arange(0, PAD_LATENT), SWAP_AB)
    within = _of_rows(real, SWAP_AB) & (cols < LATENT)
    if splits == 1:
        place = queries.to(tl.int64) * o_row + heads.to(tl.int64) * o_head
        tl.store(out_ptr + _of_rows(place, SWAP_AB) + cols, acc.to(out_ptr.dtype.element_ty),
                 mask=within)  # fmt: skip
        all_heads = heads_kv * GROUP
        tl.store(lse_ptr + (sequence * all_heads + heads).to(tl.int64) * seqlen_q + queries,
                 lse * LN_2, mask=real)  # fmt: skip
    else:
        kept = _kept_row(sequence, head_kv, rows, heads_kv, seqlen_q, GROUP) * splits_kept + split
        tl.store(partial_lse_ptr + kept, lse, mask=real)
        tl.store(partial_ptr + _of_rows(kept, SWAP_AB) * LATENT + cols, acc, mask=within)


@triton.jit
def _key_blocks(
    q_latent, q_rope, kv_ptr, kv_page, kv_slot, table_ptr, begin, end, diagonal, scale_log2,
    LATENT: tl.constexpr, ROPE: tl.constexpr, PAD_LATENT: tl.constexpr, PAD_ROPE: tl.constexpr,
    CAUSAL: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    SWAP_AB: tl.constexpr,
):  # fmt: skip
    """Attends to the keys [begin, end). Returns (acc, row_max, row_sum); row_max is in log2 units.

    acc is (BLOCK_M, PAD_LATENT), with SWAP_AB transposed. Every block is masked: a loop of its own
    for the last one would wait for memory once more.
    """
    shape: tl.constexpr = [PAD_LATENT, BLOCK_M] if SWAP_AB else [BLOCK_M, PAD_LATENT]
    axis: tl.constexpr = 0 if SWAP_AB else 1  # of keys in scores
    acc = tl.zeros(shape, tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        real = keys < end
        latent = _load_keys(
            kv_ptr, kv_page, kv_slot, table_ptr, keys, real, LATENT, PAD_LATENT, PAGE_SIZE
        )
        rope = _load_keys(
            kv_ptr + LATENT, kv_page, kv_slot, table_ptr, keys, real, ROPE, PAD_ROPE, PAGE_SIZE
        )
        if SWAP_AB:  # (BLOCK_N, BLOCK_M), not yet scaled
            s = tl.dot(rope, q_rope.T, tl.dot(latent, q_latent.T))
        else:
            s = tl.dot(q_rope, rope.T, tl.dot(q_latent, latent.T))
        sees = _of_columns(real, SWAP_AB)
        if CAUSAL:
            sees = sees & (_of_columns(keys, SWAP_AB) <= _of_rows(diagonal, SWAP_AB))
        s = tl.where(sees, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, axis) * scale_log2)
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # a row that has seen no key
        p = tl.exp2(s * scale_log2 - _of_rows(shift, SWAP_AB))
        row_scale = tl.exp2(row_max - shift)
        row_sum = row_sum * row_scale + tl.sum(p, axis)
        row_max = new_max
        acc = acc * _of_rows(row_scale, SWAP_AB)
        if SWAP_AB:
            acc = tl.dot(latent.T, p.to(latent.dtype), acc)
        else:
            acc = tl.dot(p.to(latent.dtype), latent, acc)
    return acc, row_max, row_sum


@triton.jit
def _load_rows(rows, real, WIDTH: tl.constexpr, PAD: tl.constexpr):
    """Loads the rows that begin at these pointers, zero where they are not `real`."""
    cols = tl.arange(0, PAD)
    return tl.load(rows[:, None] + cols[None, :], mask=real[:, None] & (cols < WIDTH)[None, :],
                   other=0.0)  # fmt: skip


@triton.jit
def _of_rows(x, SWAP_AB: tl.constexpr):
    """A number for each query row, as an operand with scores or outputs."""
    if SWAP_AB:
        return x[None, :]
    else:
        return x[:, None]


@triton.jit
def _of_columns(x, SWAP_AB: tl.constexpr):
    """A number for each key, or column of the output, as `_of_rows` has it for rows."""
    if SWAP_AB:
        return x[:, None]
    else:
        return x[None, :]
