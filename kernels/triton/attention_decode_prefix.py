"""The device code of attention_decode_prefix_triton.py, which describes the algorithm."""

import triton
import triton.language as tl
from tunefa.kernels.triton.attention_decode import (
    IS_COMPILED,
    SEQUENCES,
    _combine_row,
    _kept_row,
    _key_blocks,
    _keys_of_split,
    _splits,
)

FIRST = tl.constexpr(1)
PAGES = tl.constexpr(2)
"""What `found_ptr` points to, (2 + batch,) in int32: the number of the tile that is free next, then
at FIRST the first sequence with keys, and from PAGES on the shared pages of each sequence."""


# -------------------------------------------------------------------------------------- the kernels


@triton.jit
def count_shared_pages(
    seqlens_ptr, table_ptr, found_ptr, table_row, batch, most_keys, hidden_keys,
    PAGE_SIZE: tl.constexpr, ENTRIES: tl.constexpr, DEPENDENT_LAUNCH: tl.constexpr,
):  # fmt: skip
    """Counts the leading pages that a sequence has in common with the first sequence with keys.

    The last `hidden_keys` of a sequence do not count: some of its queries do not see them. A
    sequence without keys has all pages in common, and none where no sequence has keys.
    """
    if DEPENDENT_LAUNCH and IS_COMPILED:
        tl.extra.cuda.gdc_launch_dependents()
    sequence = tl.program_id(0)
    first = batch
    for start in range(0, batch, SEQUENCES):
        each = start + tl.arange(0, SEQUENCES)
        lengths = tl.load(seqlens_ptr + each, mask=each < batch, other=0)
        first = tl.minimum(first, tl.min(tl.where(lengths > 0, each, batch), 0))
    if sequence == 0:
        tl.store(found_ptr, tl.num_programs(0) * 0)
        tl.store(found_ptr + FIRST, tl.minimum(first, batch - 1))
    pages = tl.where(first < batch, most_keys // PAGE_SIZE, 0)
    keys = tl.minimum(tl.load(seqlens_ptr + sequence), most_keys)
    if keys > 0:
        shortest = tl.minimum(keys, tl.load(seqlens_ptr + first))
        pages = tl.maximum(shortest - hidden_keys, 0) // PAGE_SIZE
        column = tl.where(sequence == first, pages, 0)
        while column < pages:
            each = column + tl.arange(0, ENTRIES)
            own = tl.load(table_ptr + sequence.to(tl.int64) * table_row + each,
                          mask=each < pages, other=0)  # fmt: skip
            other = tl.load(table_ptr + first.to(tl.int64) * table_row + each,
                            mask=each < pages, other=0)  # fmt: skip
            pages = tl.minimum(pages, tl.min(tl.where(own != other, each, pages), 0))
            column += ENTRIES
    tl.store(found_ptr + PAGES + sequence, pages)


@triton.jit
def attention_decode_prefix(
    q_ptr, k_ptr, v_ptr, seqlens_ptr, table_ptr, found_ptr, partial_ptr, partial_lse_ptr,
    q_batch, q_head, q_row, k_page, k_head, k_slot, v_page, v_head, v_slot, table_row, batch,
    heads_kv, seqlen_q, most_keys, prefix_tiles, row_tiles, splits_kept, prefix_splits,
    min_split_keys, max_splits, scale_log2, tanh_scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, PAGE_SIZE: tl.constexpr,
    PREFIX_BLOCK_M: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DEPENDENT_LAUNCH: tl.constexpr,
):  # fmt: skip
    """Attends tiles of query rows to splits of keys, first those of the prefix.

    A tile of the prefix has rows of all sequences, any other one those of one sequence. Results go
    to `partial_ptr`: (batch, heads_kv, group * seqlen_q, splits_kept, head_dim_v), and their
    logsumexps to `partial_lse_ptr`, which lacks the last axis. Of each row, splits of the prefix
    come before those of the sequence.
    """
    if DEPENDENT_LAUNCH and IS_COMPILED:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    prefix, longest = _prefix_and_longest(seqlens_ptr, found_ptr, batch, most_keys, PAGE_SIZE)
    prefix_each = _keys_of_split(prefix, min_split_keys, prefix_splits, BLOCK_N)
    parts = (prefix + prefix_each - 1) // prefix_each
    # No sequence has more splits than so many, as each but the last has `min_split_keys` or more.
    most = (longest - prefix + min_split_keys - 1) // min_split_keys
    most = tl.maximum(tl.minimum(most, max_splits), 1)
    of_prefix = parts * heads_kv * prefix_tiles
    items = of_prefix + most * batch * heads_kv * row_tiles
    item = tl.program_id(0)
    while item < items:
        if item < of_prefix:
            part = item // prefix_tiles // heads_kv
            begin = part * prefix_each
            table = table_ptr + tl.load(found_ptr + FIRST).to(tl.int64) * table_row
            _attend_tile(
                q_ptr, q_batch, q_head, q_row, k_ptr, k_page, k_head, k_slot, v_ptr, v_page, v_head,
                v_slot, table, seqlens_ptr, partial_ptr, partial_lse_ptr,
                item % prefix_tiles * PREFIX_BLOCK_M, batch * seqlen_q * GROUP, begin,
                tl.minimum(begin + prefix_each, prefix), part, item // prefix_tiles % heads_kv,
                heads_kv, seqlen_q, most_keys, splits_kept, scale_log2, tanh_scale, HEAD_DIM,
                HEAD_DIM_V, PAD_D, PAD_DV, GROUP, False, SOFTCAP, PAGE_SIZE, PREFIX_BLOCK_M,
                BLOCK_N)  # fmt: skip
        else:
            _attend_own_keys(
                item - of_prefix, q_ptr, q_batch, q_head, q_row, k_ptr, k_page, k_head, k_slot,
                v_ptr, v_page, v_head, v_slot, table_ptr, table_row, seqlens_ptr, partial_ptr,
                partial_lse_ptr, prefix, parts, batch, heads_kv, seqlen_q, most_keys, row_tiles,
                splits_kept, min_split_keys, max_splits, scale_log2, tanh_scale, HEAD_DIM,
                HEAD_DIM_V, PAD_D, PAD_DV, GROUP, CAUSAL, SOFTCAP, PAGE_SIZE, BLOCK_M,
                BLOCK_N)  # fmt: skip
        item = tl.num_programs(0) + tl.atomic_add(found_ptr, 1, sem="relaxed")


@triton.jit
def combine_with_prefix(
    out_ptr, lse_ptr, seqlens_ptr, sinks_ptr, found_ptr, partial_ptr, partial_lse_ptr,
    o_batch, o_head, o_row, batch, heads, seqlen_q, most_keys, splits_kept, prefix_splits,
    min_split_keys, max_splits,
    HEAD_DIM_V: tl.constexpr, PAD_DV: tl.constexpr, GROUP: tl.constexpr, SINKS: tl.constexpr,
    PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
    DEPENDENT_LAUNCH: tl.constexpr,
):  # fmt: skip
    """Combines the splits of one query row: those of the prefix, and those of its sequence."""
    if DEPENDENT_LAUNCH and IS_COMPILED:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    sequence = row // (heads * seqlen_q)
    prefix, _ = _prefix_and_longest(seqlens_ptr, found_ptr, batch, most_keys, PAGE_SIZE)
    prefix_each = _keys_of_split(prefix, min_split_keys, prefix_splits, BLOCK_N)
    keys = tl.minimum(tl.load(seqlens_ptr + sequence), most_keys)
    splits = (prefix + prefix_each - 1) // prefix_each
    splits += _splits(keys - prefix, min_split_keys, max_splits, BLOCK_N)
    _combine_row(out_ptr, lse_ptr, sinks_ptr, partial_ptr, partial_lse_ptr, o_batch, o_head, o_row,
                 row, heads, seqlen_q, splits, splits_kept,
                 HEAD_DIM_V, PAD_DV, GROUP, SINKS, CHUNK)  # fmt: skip


# -------------------------------------------------------------------------------------- their parts


@triton.jit
def _prefix_and_longest(seqlens_ptr, found_ptr, batch, most_keys, PAGE_SIZE: tl.constexpr):
    """Returns the keys that all sequences share, and the keys of the longest sequence."""
    pages = most_keys // PAGE_SIZE
    longest = 0
    for start in range(0, batch, SEQUENCES):
        each = start + tl.arange(0, SEQUENCES)
        shared = tl.load(found_ptr + PAGES + each, mask=each < batch, other=pages)
        lengths = tl.load(seqlens_ptr + each, mask=each < batch, other=0)
        pages = tl.minimum(pages, tl.min(shared, 0))
        longest = tl.maximum(longest, tl.max(lengths, 0))
    return pages * PAGE_SIZE, tl.minimum(longest, most_keys)


@triton.jit
def _attend_own_keys(
    number, q_ptr, q_batch, q_head, q_row, k_ptr, k_page, k_head, k_slot, v_ptr, v_page, v_head,
    v_slot, table_ptr, table_row, seqlens_ptr, partial_ptr, partial_lse_ptr, prefix, parts, batch,
    heads_kv, seqlen_q, most_keys, row_tiles, splits_kept, min_split_keys, max_splits, scale_log2,
    tanh_scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attends rows of one sequence to one split of its keys behind the prefix; `number` counts the
    first split of all sequences, then the second one. Most sequences have fewer than the most."""
    tile = number % row_tiles
    head_kv = number // row_tiles % heads_kv
    sequence = number // row_tiles // heads_kv % batch
    split = number // row_tiles // heads_kv // batch
    keys = tl.minimum(tl.load(seqlens_ptr + sequence), most_keys)
    if split < _splits(keys - prefix, min_split_keys, max_splits, BLOCK_N):
        each = _keys_of_split(keys - prefix, min_split_keys, max_splits, BLOCK_N)
        begin = prefix + split * each
        first_row = sequence * seqlen_q * GROUP
        _attend_tile(
            q_ptr, q_batch, q_head, q_row, k_ptr, k_page, k_head, k_slot, v_ptr, v_page, v_head,
            v_slot, table_ptr + sequence.to(tl.int64) * table_row, seqlens_ptr, partial_ptr,
            partial_lse_ptr, first_row + tile * BLOCK_M, first_row + seqlen_q * GROUP, begin,
            tl.minimum(begin + each, keys), parts + split, head_kv, heads_kv, seqlen_q, most_keys,
            splits_kept, scale_log2, tanh_scale, HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, GROUP, CAUSAL,
            SOFTCAP, PAGE_SIZE, BLOCK_M, BLOCK_N)  # fmt: skip


@triton.jit
def _attend_tile(
    q_ptr, q_batch, q_head, q_row, k_ptr, k_page, k_head, k_slot, v_ptr, v_page, v_head, v_slot,
    table_ptr, seqlens_ptr, partial_ptr, partial_lse_ptr, first_row, end_row, begin, end, place,
    head_kv, heads_kv, seqlen_q, most_keys, splits_kept, scale_log2, tanh_scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, SOFTCAP: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attends rows of one KV head, from `first_row` on, to the keys [begin, end) of one row of the
    block table. The result goes to `place` among the splits of each row.

    Rows are counted over all sequences: each has group * seqlen_q.
    """
    rows = first_row + tl.arange(0, BLOCK_M)
    real = rows < end_row
    sequences = rows // (seqlen_q * GROUP)
    own = rows % (seqlen_q * GROUP)
    queries = own // GROUP
    heads = head_kv * GROUP + own % GROUP
    keys = tl.minimum(tl.load(seqlens_ptr + sequences, mask=real, other=0), most_keys)
    q_rows = sequences.to(tl.int64) * q_batch + heads.to(tl.int64) * q_head + queries * q_row
    cols = tl.arange(0, PAD_D)
    q = tl.load(q_ptr + q_rows[:, None] + cols[None, :],
                mask=real[:, None] & (cols < HEAD_DIM)[None, :], other=0.0)  # fmt: skip
    acc, row_max, row_sum = _key_blocks(
        q, k_ptr + head_kv.to(tl.int64) * k_head, k_page, k_slot,
        v_ptr + head_kv.to(tl.int64) * v_head, v_page, v_slot, table_ptr, begin, end,
        keys - seqlen_q + queries, 0, scale_log2, tanh_scale,
        HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, CAUSAL, False, SOFTCAP, PAGE_SIZE,
        BLOCK_M, BLOCK_N)  # fmt: skip
    # The rows of a sequence without keys see none of the prefix either.
    seen = (row_sum > 0.0) & (keys > 0)
    acc = tl.where(seen[:, None], acc / tl.where(seen, row_sum, 1.0)[:, None], 0.0)
    lse = tl.where(seen, row_max + tl.log2(row_sum), float("-inf"))
    kept = _kept_row(sequences, head_kv, own, heads_kv, seqlen_q, GROUP) * splits_kept + place
    cols_v = tl.arange(0, PAD_DV)
    tl.store(partial_lse_ptr + kept, lse, mask=real)
    tl.store(partial_ptr + kept[:, None] * HEAD_DIM_V + cols_v[None, :], acc,
             mask=real[:, None] & (cols_v < HEAD_DIM_V)[None, :])  # fmt: skip
