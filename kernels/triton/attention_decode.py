"""The device code of attention_decode_triton.py, which describes the algorithm."""

import math

import triton
import triton.language as tl

LN_2 = tl.constexpr(math.log(2.0))
LOG2_E = tl.constexpr(math.log2(math.e))
IS_COMPILED = tl.constexpr(not triton.knobs.runtime.interpret)
"""The interpreter has no launches that depend on one another."""
SEQUENCES = tl.constexpr(128)
"""Sequences whose lengths a CTA reads at once, to find the one that a split is of."""


# -------------------------------------------------------------------------------------- the kernels


@triton.jit
def attention_decode(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, seqlens_ptr, table_ptr, sinks_ptr, k_descale_ptr,
    v_descale_ptr, partial_ptr, partial_lse_ptr,
    q_batch, q_head, q_row, k_page, k_head, k_slot, v_page, v_head, v_slot, o_batch, o_head, o_row,
    kd_sequence, kd_head, vd_sequence, vd_head, table_row, batch, heads_kv, seqlen_q, most_keys,
    row_tiles, splits_kept, window_left, min_split_keys, max_splits, scale_log2, tanh_scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr, E4M3_CACHE: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, DEPENDENT_LAUNCH: tl.constexpr,
):  # fmt: skip
    """Computes splits: one after the other, as many CTAs apart as there are.

    A length beyond `most_keys`, the places of the cache, counts as that.
    `splits_kept` is the number of splits that each sequence has memory for in `partial_ptr`:
    (batch, heads_kv, group * seqlen_q, splits_kept, head_dim_v), and without the last axis in
    `partial_lse_ptr`.
    """
    if DEPENDENT_LAUNCH and IS_COMPILED:
        tl.extra.cuda.gdc_launch_dependents()
    heads_here = heads_kv * row_tiles
    for item in range(tl.program_id(0), batch * splits_kept * heads_here, tl.num_programs(0)):
        sequence, split = _split_of(
            item // heads_here, seqlens_ptr, batch, seqlen_q, most_keys, window_left,
            min_split_keys, max_splits, WINDOWED, BLOCK_N)  # fmt: skip
        if sequence < batch:
            head_kv = item % heads_here // row_tiles
            k = k_ptr + head_kv.to(tl.int64) * k_head
            v = v_ptr + head_kv.to(tl.int64) * v_head
            if PAGE_SIZE == 0:
                k += sequence.to(tl.int64) * k_page
                v += sequence.to(tl.int64) * v_page
            k_descale = 1.0
            v_descale = 1.0
            if E4M3_CACHE:
                k_descale = tl.load(k_descale_ptr + sequence * kd_sequence + head_kv * kd_head)
                v_descale = tl.load(v_descale_ptr + sequence * vd_sequence + head_kv * vd_head)
            _attend_split(
                q_ptr + sequence.to(tl.int64) * q_batch, q_head, q_row,
                k, k_page, k_slot, v, v_page, v_slot,
                out_ptr + sequence.to(tl.int64) * o_batch, o_head, o_row, lse_ptr,
                tl.minimum(tl.load(seqlens_ptr + sequence), most_keys),
                table_ptr + sequence.to(tl.int64) * table_row,
                sinks_ptr, partial_ptr, partial_lse_ptr, sequence, split, head_kv,
                item % row_tiles, heads_kv, seqlen_q, splits_kept, window_left, min_split_keys,
                max_splits, scale_log2 if SOFTCAP else scale_log2 * k_descale,
                tanh_scale * k_descale, v_descale,
                HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, GROUP, CAUSAL, WINDOWED, SOFTCAP, SINKS,
                PAGE_SIZE, BLOCK_M, BLOCK_N)  # fmt: skip


@triton.jit
def combine_splits(
    out_ptr, lse_ptr, seqlens_ptr, sinks_ptr, partial_ptr, partial_lse_ptr,
    o_batch, o_head, o_row, heads, seqlen_q, most_keys, splits_kept, window_left, min_split_keys,
    max_splits,
    HEAD_DIM_V: tl.constexpr, PAD_DV: tl.constexpr, GROUP: tl.constexpr, WINDOWED: tl.constexpr,
    SINKS: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr, DEPENDENT_LAUNCH: tl.constexpr,
):  # fmt: skip
    """Combines the splits of one query row; a row with one split is written already.

    The order of the sum depends on the number of splits alone, and so on the sequence alone.
    """
    if DEPENDENT_LAUNCH and IS_COMPILED:  # in every CTA: a launch that does not would end early
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    sequence = row // (heads * seqlen_q)
    keys = tl.minimum(tl.load(seqlens_ptr + sequence), most_keys)
    begin = _first_key(keys, seqlen_q, window_left, WINDOWED, BLOCK_N)
    splits = _splits(keys - begin, min_split_keys, max_splits, BLOCK_N)
    if splits > 1:
        _combine_row(
            out_ptr, lse_ptr, sinks_ptr, partial_ptr, partial_lse_ptr, o_batch, o_head, o_row, row,
            heads, seqlen_q, splits, splits_kept,
            HEAD_DIM_V, PAD_DV, GROUP, SINKS, CHUNK)  # fmt: skip


@triton.jit
def _combine_row(
    out_ptr, lse_ptr, sinks_ptr, partial_ptr, partial_lse_ptr, o_batch, o_head, o_row, row, heads,
    seqlen_q, splits, splits_kept,
    HEAD_DIM_V: tl.constexpr, PAD_DV: tl.constexpr, GROUP: tl.constexpr, SINKS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Combines the first `splits` of a row, which is counted as in lse, and writes its results."""
    sequence = row // (heads * seqlen_q)
    head = row // seqlen_q % heads
    query = row % seqlen_q
    kept = _kept_row(sequence, head // GROUP, query * GROUP + head % GROUP,
                     heads // GROUP, seqlen_q, GROUP) * splits_kept  # fmt: skip
    cols = tl.arange(0, PAD_DV)
    row_max = float("-inf")
    row_sum = 0.0
    acc = tl.zeros([PAD_DV], tl.float32)
    for first in range(0, splits, CHUNK):
        each = first + tl.arange(0, CHUNK)
        real = each < splits
        lse = tl.load(partial_lse_ptr + kept + each, mask=real, other=float("-inf"))
        parts = tl.load(
            partial_ptr + (kept + each)[:, None] * HEAD_DIM_V + cols[None, :],
            mask=real[:, None] & (cols < HEAD_DIM_V)[None, :], other=0.0,
        )  # fmt: skip
        new_max = tl.maximum(row_max, tl.max(lse, 0))
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(lse - shift)
        row_scale = tl.exp2(row_max - shift)
        row_sum = row_sum * row_scale + tl.sum(weights, 0)
        acc = acc * row_scale + tl.sum(parts * weights[:, None], 0)
        row_max = new_max
    if SINKS:
        row_max, row_sum, acc = _with_sink(row_max, row_sum, acc, sinks_ptr + head)
    seen = row_sum > 0.0
    acc = acc / tl.where(seen, row_sum, 1.0)
    lse = tl.where(seen, (row_max + tl.log2(row_sum)) * LN_2, float("-inf"))
    tl.store(lse_ptr + row, lse)
    out = out_ptr + sequence.to(tl.int64) * o_batch + head.to(tl.int64) * o_head
    tl.store(out + query.to(tl.int64) * o_row + cols, acc.to(out_ptr.dtype.element_ty),
             mask=cols < HEAD_DIM_V)  # fmt: skip


# --------------------------------------------------------------------------------- the split rule


@triton.jit
def _first_key(keys, seqlen_q, window_left, WINDOWED: tl.constexpr, BLOCK_N: tl.constexpr):
    """Returns the first key of the first block that a query sees, of sequences of these lengths."""
    begin = keys * 0
    if WINDOWED:
        begin = tl.maximum(keys - seqlen_q - window_left, 0) // BLOCK_N * BLOCK_N
    return begin


@triton.jit
def _keys_of_split(keys, min_split_keys, max_splits, BLOCK_N: tl.constexpr):
    """Returns how many keys each split of so many visible keys has; the last one may have fewer."""
    share = (keys + max_splits - 1) // max_splits
    return tl.maximum((share + BLOCK_N - 1) // BLOCK_N * BLOCK_N, min_split_keys)


@triton.jit
def _splits(keys, min_split_keys, max_splits, BLOCK_N: tl.constexpr):
    """Returns the number of splits of so many visible keys; 1 for none."""
    each = _keys_of_split(keys, min_split_keys, max_splits, BLOCK_N)
    return tl.maximum((keys + each - 1) // each, 1)


@triton.jit
def _split_of(
    number, seqlens_ptr, batch, seqlen_q, most_keys, window_left, min_split_keys, max_splits,
    WINDOWED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Returns (sequence, split) of the split with that number, among those of all sequences.

    The sequence is at least `batch` where there are fewer splits.
    """
    sequence = 0
    split = number
    if batch == 1:
        keys = tl.minimum(tl.load(seqlens_ptr), most_keys)
        begin = _first_key(keys, seqlen_q, window_left, WINDOWED, BLOCK_N)
        if number >= _splits(keys - begin, min_split_keys, max_splits, BLOCK_N):
            sequence = 1
    else:
        before = 0
        for first in range(0, batch, SEQUENCES):
            each = first + tl.arange(0, SEQUENCES)
            keys = tl.minimum(tl.load(seqlens_ptr + each, mask=each < batch, other=0), most_keys)
            begin = _first_key(keys, seqlen_q, window_left, WINDOWED, BLOCK_N)
            splits = _splits(keys - begin, min_split_keys, max_splits, BLOCK_N)
            splits = tl.where(each < batch, splits, 0)
            passed = before + tl.cumsum(splits, 0) <= number
            sequence += tl.sum(tl.where(passed, 1, 0), 0)
            split -= tl.sum(tl.where(passed, splits, 0), 0)
            before += tl.sum(splits, 0)
    return sequence, split


@triton.jit
def _kept_row(sequence, head_kv, row, heads_kv, seqlen_q, GROUP: tl.constexpr):
    """Returns the number of a row of partial results, 64 bits wide."""
    return (sequence * heads_kv + head_kv).to(tl.int64) * (seqlen_q * GROUP) + row


# ----------------------------------------------------------------------------------- one split


@triton.jit
def _attend_split(
    q_ptr, q_head, q_row, k_ptr, k_page, k_slot, v_ptr, v_page, v_slot, out_ptr, o_head, o_row,
    lse_ptr, keys, table_ptr, sinks_ptr, partial_ptr, partial_lse_ptr,
    sequence, split, head_kv, row_tile, heads_kv, seqlen_q, splits_kept, window_left,
    min_split_keys, max_splits, scale_log2, tanh_scale, v_descale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attends BLOCK_M query rows of one KV head to one split of a sequence of `keys` keys."""
    rows = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = rows // GROUP
    row_heads = head_kv * GROUP + rows % GROUP
    real = queries < seqlen_q
    cols = tl.arange(0, PAD_D)
    q = tl.load(
        q_ptr + queries[:, None] * q_row + row_heads.to(tl.int64)[:, None] * q_head + cols[None, :],
        mask=real[:, None] & (cols < HEAD_DIM)[None, :], other=0.0,
    )  # fmt: skip
    first = _first_key(keys, seqlen_q, window_left, WINDOWED, BLOCK_N)
    each = _keys_of_split(keys - first, min_split_keys, max_splits, BLOCK_N)
    splits = _splits(keys - first, min_split_keys, max_splits, BLOCK_N)
    begin = first + split * each
    end = tl.minimum(begin + each, keys)
    diagonal = keys - seqlen_q + queries  # the last key of a causal row
    acc, row_max, row_sum = _key_blocks(
        q, k_ptr, k_page, k_slot, v_ptr, v_page, v_slot, table_ptr, begin, end, diagonal,
        window_left, scale_log2, tanh_scale,
        HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, CAUSAL, WINDOWED, SOFTCAP, PAGE_SIZE,
        BLOCK_M, BLOCK_N)  # fmt: skip
    if splits == 1 and SINKS:
        row_max, row_sum, acc = _with_sinks(row_max, row_sum, acc, sinks_ptr + row_heads, real)
    seen = row_sum > 0.0
    acc = acc / tl.where(seen, row_sum, 1.0)[:, None] * v_descale
    lse = tl.where(seen, row_max + tl.log2(row_sum), float("-inf"))
    cols_v = tl.arange(0, PAD_DV)
    within = real[:, None] & (cols_v < HEAD_DIM_V)[None, :]
    if splits == 1:
        place = queries.to(tl.int64) * o_row + row_heads.to(tl.int64) * o_head
        out = acc.to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + place[:, None] + cols_v[None, :], out, mask=within)
        heads = heads_kv * GROUP
        tl.store(lse_ptr + (sequence * heads + row_heads).to(tl.int64) * seqlen_q + queries,
                 lse * LN_2, mask=real)  # fmt: skip
    else:
        kept = _kept_row(sequence, head_kv, rows, heads_kv, seqlen_q, GROUP) * splits_kept + split
        tl.store(partial_lse_ptr + kept, lse, mask=real)
        tl.store(partial_ptr + kept[:, None] * HEAD_DIM_V + cols_v[None, :], acc, mask=within)


@triton.jit
def _key_blocks(
    q, k_ptr, k_page, k_slot, v_ptr, v_page, v_slot, table_ptr, begin, end, diagonal,
    window_left, scale_log2, tanh_scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, SOFTCAP: tl.constexpr, PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Attends to the keys [begin, end). Returns (acc, row_max, row_sum); row_max is in log2 units.

    Every block is masked: a loop of its own for the last one would wait for memory once more.
    """
    acc = tl.zeros([BLOCK_M, PAD_DV], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    for start in tl.range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        real = keys < end
        k = _load_keys(k_ptr, k_page, k_slot, table_ptr, keys, real, HEAD_DIM, PAD_D, PAGE_SIZE)
        s = tl.dot(q, k.to(q.dtype).T)  # (BLOCK_M, BLOCK_N), not yet scaled
        if SOFTCAP:
            s = _tanh(s * tanh_scale)
        sees = real[None, :]
        if CAUSAL:
            sees = sees & (keys[None, :] <= diagonal[:, None])
        if WINDOWED:
            sees = sees & (keys[None, :] >= diagonal[:, None] - window_left)
        s = tl.where(sees, s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale_log2)
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # a row that has seen no key
        p = tl.exp2(s * scale_log2 - shift[:, None])
        row_scale = tl.exp2(row_max - shift)
        row_sum = row_sum * row_scale + tl.sum(p, 1)
        row_max = new_max
        v = _load_keys(v_ptr, v_page, v_slot, table_ptr, keys, real, HEAD_DIM_V, PAD_DV, PAGE_SIZE)
        acc = tl.dot(p.to(q.dtype), v.to(q.dtype), acc * row_scale[:, None])
    return acc, row_max, row_sum


@triton.jit
def _load_keys(
    base, page_stride, slot_stride, table_ptr, keys, real,
    WIDTH: tl.constexpr, PAD: tl.constexpr, PAGE_SIZE: tl.constexpr,
):  # fmt: skip
    """Loads the rows of K or V with the numbers `keys`, zero where they are not `real`.

    PAGE_SIZE 0 means that the cache has no pages, and `base` is the sequence's first row.
    """
    if PAGE_SIZE:
        pages = tl.load(table_ptr + keys // PAGE_SIZE, mask=real, other=0)
        rows = pages.to(tl.int64) * page_stride + keys % PAGE_SIZE * slot_stride
    else:
        rows = keys.to(tl.int64) * slot_stride
    cols = tl.arange(0, PAD)
    mask = real[:, None]
    if PAD != WIDTH:
        mask = mask & (cols < WIDTH)[None, :]
    return tl.load(base + rows[:, None] + cols[None, :], mask=mask, other=0.0)


@triton.jit
def _tanh(x):
    """Returns tanh(x) by exp2: Triton has no tanh that both compiles and is interpreted."""
    power = tl.exp2(tl.abs(x) * (-2.0 * LOG2_E))
    size = (1.0 - power) / (1.0 + power)
    return tl.where(x < 0.0, -size, size)


@triton.jit
def _with_sinks(row_max, row_sum, acc, sinks_ptr, real):
    """Returns (row_max, row_sum, acc) of rows with one more logit each, which has no value."""
    sink = tl.load(sinks_ptr, mask=real, other=float("-inf")) * LOG2_E
    new_max = tl.maximum(row_max, sink)
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    row_scale = tl.exp2(row_max - shift)
    return new_max, row_sum * row_scale + tl.exp2(sink - shift), acc * row_scale[:, None]


@triton.jit
def _with_sink(row_max, row_sum, acc, sink_ptr):
    """Does what `_with_sinks` does, for one row."""
    sink = tl.load(sink_ptr) * LOG2_E
    new_max = tl.maximum(row_max, sink)
    shift = tl.where(new_max == float("-inf"), 0.0, new_max)
    row_scale = tl.exp2(row_max - shift)
    return new_max, row_sum * row_scale + tl.exp2(sink - shift), acc * row_scale
