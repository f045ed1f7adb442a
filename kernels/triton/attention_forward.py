"""The device code of attention_fwd_triton.py, which describes the algorithm.

One Triton program computes one tile: BLOCK_M query rows of one head, or of all query heads of one
KV head (PACK_GQA).
"""

import math

import triton
import triton.language as tl

LN_2 = tl.constexpr(math.log(2.0))


# --------------------------------------------------------------------------------------- the kernel


@triton.jit
def attention_fwd(
    q_ptr, k_source, v_source, out_ptr, lse_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, o_batch, o_head, o_row,
    heads, seqlen_q, seqlen_k, num_tiles, num_heads, section_heads, scale_log2,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, USE_TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PACK_GQA: tl.constexpr,
):  # fmt: skip
    """Computes one tile. `num_heads` counts batch * heads, or batch * KV heads with PACK_GQA."""
    PACKED: tl.constexpr = GROUP if PACK_GQA else 1  # query heads in one tile
    tile, head_index = _tile_of_program(num_tiles, num_heads, section_heads, CAUSAL)
    heads_here = heads // PACKED
    batch = head_index // heads_here
    head = (head_index % heads_here) * PACKED  # the first query head of the tile
    head_kv = head // GROUP
    queries, row_heads, real = _rows_of_tile(tile, head, seqlen_q, BLOCK_M, PACKED)
    q = _load_queries(q_ptr, q_batch, q_head, q_row, batch, queries, row_heads, real,
                      HEAD_DIM, PAD_D)  # fmt: skip
    if not USE_TMA:
        k_source += batch.to(tl.int64) * k_batch + head_kv.to(tl.int64) * k_head
        v_source += batch.to(tl.int64) * v_batch + head_kv.to(tl.int64) * v_head
    last_key, clear, end = _visible_keys(tile, queries, seqlen_q, seqlen_k,
                                         CAUSAL, BLOCK_M, BLOCK_N, PACKED)  # fmt: skip

    acc = tl.zeros([BLOCK_M, PAD_DV], tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc, row_max, row_sum = _key_blocks(
        acc, row_max, row_sum, q, k_source, v_source, k_row, v_row, batch, head_kv,
        0, clear, last_key, seqlen_k, scale_log2,
        HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, BLOCK_N, USE_TMA, False, PRECISION)  # fmt: skip
    acc, row_max, row_sum = _key_blocks(
        acc, row_max, row_sum, q, k_source, v_source, k_row, v_row, batch, head_kv,
        clear, end, last_key, seqlen_k, scale_log2,
        HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, BLOCK_N, USE_TMA, True, PRECISION)  # fmt: skip

    acc = _finish(acc, row_max, row_sum, lse_ptr, batch, heads, row_heads, seqlen_q, queries, real)
    _store_output(out_ptr, o_batch, o_head, o_row, acc, batch, queries, row_heads, real,
                  HEAD_DIM_V, PAD_DV)  # fmt: skip


# ------------------------------------------------------------------- the tile: its rows, its keys


@triton.jit
def _tile_of_program(num_tiles, num_heads, section_heads, CAUSAL: tl.constexpr):
    """Returns (tile, head) of this program.

    Heads are worked on section by section, and inside a section the tile with most keys comes
    first.
    """
    program = tl.program_id(0)
    section = program // (num_tiles * section_heads)
    first_head = section * section_heads
    heads_here = tl.minimum(num_heads - first_head, section_heads)
    rest = program - first_head * num_tiles
    tile = rest // heads_here
    head = first_head + rest % heads_here
    if CAUSAL:
        tile = num_tiles - 1 - tile
    return tile, head


@triton.jit
def _rows_of_tile(tile, head, seqlen_q, BLOCK_M: tl.constexpr, PACKED: tl.constexpr):
    """Returns, for each row of the tile, (query, query head, whether the query exists).

    Row r of a tile is query r // PACKED of head `head + r % PACKED`.
    """
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    queries = rows // PACKED
    row_heads = head + rows % PACKED
    real = queries < seqlen_q
    return queries, row_heads, real


@triton.jit
def _visible_keys(
    tile, queries, seqlen_q, seqlen_k,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """Returns (last key of each row, clear, end): every row of the tile sees the keys [0, clear),
    and only some rows see the keys [clear, end)."""
    last_key = seqlen_k - 1 + tl.zeros([BLOCK_M], tl.int32)
    clear = seqlen_k
    end = seqlen_k
    if CAUSAL:
        offset = seqlen_k - seqlen_q
        last_key = queries + offset
        last_query = tl.minimum((tile * BLOCK_M + BLOCK_M - 1) // PACKED, seqlen_q - 1)
        clear = tl.minimum(tl.maximum((tile * BLOCK_M) // PACKED + 1 + offset, 0), seqlen_k)
        end = tl.minimum(tl.maximum(last_query + 1 + offset, 0), seqlen_k)
        last_key = tl.minimum(last_key, seqlen_k - 1)
    clear = clear // BLOCK_N * BLOCK_N
    return last_key, clear, end


# ----------------------------------------------------------------------------------- the inner loop


@triton.jit
def _key_blocks(
    acc, row_max, row_sum, q, k_source, v_source, k_stride, v_stride, batch, head,
    key_begin, key_end, last_key, seqlen_k, scale_log2,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, USE_TMA: tl.constexpr, MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attends to the keys [key_begin, key_end): the inner loop of algorithm 1.

    Returns the updated (acc, row_max, row_sum). row_max is in units of log2.
    """
    for start in tl.range(key_begin, key_end, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = _load_rows(k_source, k_stride, start, seqlen_k, batch, head,
                       HEAD_DIM, PAD_D, BLOCK_N, USE_TMA, MASK)  # fmt: skip
        s = tl.dot(q, k.T, input_precision=PRECISION)  # (BLOCK_M, BLOCK_N), not yet scaled
        if MASK:
            keys = start + tl.arange(0, BLOCK_N)
            s = tl.where(keys[None, :] <= last_key[:, None], s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale_log2)
        shift = new_max
        if MASK:  # a row that has seen no key yet: -inf - -inf would be NaN
            shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        p = tl.exp2(s * scale_log2 - shift[:, None])
        row_scale = tl.exp2(row_max - shift)
        row_sum = row_sum * row_scale + tl.sum(p, 1)
        row_max = new_max
        acc = acc * row_scale[:, None]
        v = _load_rows(v_source, v_stride, start, seqlen_k, batch, head,
                       HEAD_DIM_V, PAD_DV, BLOCK_N, USE_TMA, MASK)  # fmt: skip
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, row_max, row_sum


# --------------------------------------------------------------------------------- loads and stores


@triton.jit
def _load_queries(
    q_ptr, q_batch, q_head, q_row, batch, queries, row_heads, real,
    HEAD_DIM: tl.constexpr, PAD_D: tl.constexpr,
):  # fmt: skip
    """Loads the tile's rows of Q: (BLOCK_M, PAD_D), zero beyond HEAD_DIM and beyond seqlen_q."""
    cols = tl.arange(0, PAD_D)
    q_base = q_ptr + batch.to(tl.int64) * q_batch
    q_rows = queries.to(tl.int64) * q_row + row_heads.to(tl.int64) * q_head
    return tl.load(
        q_base + q_rows[:, None] + cols[None, :],
        mask=real[:, None] & (cols < HEAD_DIM)[None, :],
        other=0.0,
    )


@triton.jit
def _load_rows(
    source, row_stride, start, seqlen, batch, head,
    WIDTH: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr,
    USE_TMA: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Loads rows [start, start + ROWS) of one head of K or V: (ROWS, PAD), zero beyond WIDTH and
    beyond seqlen. `source` is a TMA descriptor with USE_TMA, else a pointer to the head."""
    if USE_TMA:
        block = source.load([batch, head, start, 0]).reshape([ROWS, PAD])  # zero-fills both edges
    else:
        rows = start + tl.arange(0, ROWS)
        cols = tl.arange(0, PAD)
        where = source + rows[:, None].to(tl.int64) * row_stride + cols[None, :]
        if MASK and PAD != WIDTH:
            block = tl.load(
                where, mask=(rows < seqlen)[:, None] & (cols < WIDTH)[None, :], other=0.0
            )
        elif MASK:
            block = tl.load(where, mask=(rows < seqlen)[:, None], other=0.0)
        elif PAD != WIDTH:
            block = tl.load(where, mask=(cols < WIDTH)[None, :], other=0.0)
        else:
            block = tl.load(where)
    return block


@triton.jit
def _finish(acc, row_max, row_sum, lse_ptr, batch, heads, row_heads, seqlen_q, queries, real):
    """Writes the logsumexp of each row and returns acc / row_sum.

    A row that saw no key has row_sum 0: it gets out = 0 and lse = -inf.
    """
    seen = row_sum > 0.0
    acc = acc / tl.where(seen, row_sum, 1.0)[:, None]
    lse = tl.where(seen, row_max * LN_2 + tl.log(row_sum), float("-inf"))
    lse_rows = (batch * heads + row_heads).to(tl.int64) * seqlen_q + queries
    tl.store(lse_ptr + lse_rows, lse, mask=real)
    return acc


@triton.jit
def _store_output(
    out_ptr, o_batch, o_head, o_row, acc, batch, queries, row_heads, real,
    HEAD_DIM_V: tl.constexpr, PAD_DV: tl.constexpr,
):  # fmt: skip
    """Writes the tile's rows of the output."""
    cols = tl.arange(0, PAD_DV)
    out_base = out_ptr + batch.to(tl.int64) * o_batch
    out_rows = queries.to(tl.int64) * o_row + row_heads.to(tl.int64) * o_head
    tl.store(
        out_base + out_rows[:, None] + cols[None, :],
        acc.to(out_ptr.dtype.element_ty),
        mask=real[:, None] & (cols < HEAD_DIM_V)[None, :],
    )
