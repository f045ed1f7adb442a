"""The device code of attention_bwd_triton.py, which describes the algorithm.

One Triton program computes one tile: dK and dV of BLOCK_N1 keys of one KV head, or dQ of BLOCK_M2
query rows of one head. `do` is the gradient of the output, `dk` that of K. `lse` is in units of
log2, and infinite for rows without keys (see attention_delta.py). A tensor's `place` is (pointer,
stride of batches, of heads, of rows).
"""

import triton
import triton.language as tl
from tunefa.kernels.triton.packed_sequences import bounds_of_sequence, tile_of_sequence

# -------------------------------------------------------------------------------------- the kernel


@triton.jit
def attention_bwd(
    q_ptr, k_ptr, v_ptr, do_ptr, q_blocks, k_blocks, v_blocks, do_blocks, dq_ptr, dk_ptr, dv_ptr,
    lse_ptr, delta_ptr, cu_seqlens_q_ptr, cu_seqlens_k_ptr,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    do_batch, do_head, do_row, dq_batch, dq_head, dq_row, dk_batch, dk_head, dk_row,
    dv_batch, dv_head, dv_row,
    heads, num_heads, num_heads_kv, query_tiles, key_tiles, section_heads, seqlen_q, seqlen_k,
    bounds, padded_rows, reach_left, reach_right, scale, scale_log2, tanh_scale,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, SOFTCAP: tl.constexpr,
    VARLEN: tl.constexpr, PADDING: tl.constexpr, USE_TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M1: tl.constexpr, BLOCK_N1: tl.constexpr, BLOCK_M2: tl.constexpr, BLOCK_N2: tl.constexpr,
):  # fmt: skip
    """Computes one tile. The tiles of keys come first, because they take longer.

    `num_heads` is batch * heads (packed: heads), `num_heads_kv` likewise; `query_tiles` and
    `key_tiles` are tiles of one head (packed: the most that all sequences together can have).
    CAUSAL: a query sees `reach_right` keys after its diagonal; WINDOWED: `reach_left` before it.
    `q_blocks` and the like are TMA descriptors with USE_TMA, else unused; those of packed tensors
    have one batch.
    """
    q, k = (q_ptr, q_batch, q_head, q_row), (k_ptr, k_batch, k_head, k_row)
    v, do = (v_ptr, v_batch, v_head, v_row), (do_ptr, do_batch, do_head, do_row)
    scales, reach = (scale, scale_log2, tanh_scale), (reach_left, reach_right)
    stats = (lse_ptr, delta_ptr, padded_rows)
    program = tl.program_id(0)
    if program < key_tiles * num_heads_kv:
        tile, index = _tile_of_program(program, key_tiles, num_heads_kv, section_heads)
        batch, head_kv = index // (heads // GROUP), index % (heads // GROUP)
        sequence = (0, 0, 0, seqlen_q, seqlen_k)
        if VARLEN:
            batch, tile = tile_of_sequence(tile, cu_seqlens_k_ptr, bounds, BLOCK_N1)
            sequence = _sequence(cu_seqlens_q_ptr, cu_seqlens_k_ptr, batch, bounds, PADDING)
        dk, dv = (dk_ptr, dk_batch, dk_head, dk_row), (dv_ptr, dv_batch, dv_head, dv_row)
        _key_tile(
            tile, batch, head_kv, heads, sequence, q, k, v, do, q_blocks, do_blocks, dk, dv,
            stats, reach, scales, HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, GROUP, CAUSAL, WINDOWED,
            SOFTCAP, VARLEN, USE_TMA, PRECISION, BLOCK_M1, BLOCK_N1)  # fmt: skip
    else:
        program -= key_tiles * num_heads_kv
        tile, index = _tile_of_program(program, query_tiles, num_heads, section_heads)
        if CAUSAL:
            tile = query_tiles - 1 - tile
        batch, head = index // heads, index % heads
        sequence = (0, 0, 0, seqlen_q, seqlen_k)
        if VARLEN:
            batch, tile = tile_of_sequence(tile, cu_seqlens_q_ptr, bounds, BLOCK_M2)
            sequence = _sequence(cu_seqlens_q_ptr, cu_seqlens_k_ptr, batch, bounds, PADDING)
        _query_tile(
            tile, batch, head, heads, sequence, q, k, v, do, k_blocks, v_blocks,
            (dq_ptr, dq_batch, dq_head, dq_row), stats, reach, scales, HEAD_DIM, HEAD_DIM_V,
            PAD_D, PAD_DV, GROUP, CAUSAL, WINDOWED, SOFTCAP, VARLEN, USE_TMA, PRECISION,
            BLOCK_M2, BLOCK_N2)  # fmt: skip


@triton.jit
def _tile_of_program(program, num_tiles, num_heads, section_heads):
    """Returns (tile, head). Heads are worked on section by section; in a section the first tiles of
    all heads come first."""
    section = program // (num_tiles * section_heads)
    first_head = section * section_heads
    heads_here = tl.minimum(num_heads - first_head, section_heads)
    rest = program - first_head * num_tiles
    return rest // heads_here, first_head + rest % heads_here


@triton.jit
def _sequence(cu_seqlens_q_ptr, cu_seqlens_k_ptr, batch, bounds, PADDING: tl.constexpr):
    """Returns (first query row, first key, first row of lse and delta, queries, keys)."""
    q_begin, seqlen_q = bounds_of_sequence(cu_seqlens_q_ptr, batch, bounds)
    k_begin, seqlen_k = bounds_of_sequence(cu_seqlens_k_ptr, batch, bounds)
    return q_begin, k_begin, q_begin + batch * PADDING, seqlen_q, seqlen_k


# ---------------------------------------------------------------------- dK and dV of a tile of keys


@triton.jit
def _key_tile(
    tile, batch, head_kv, heads, sequence, q, k, v, do, q_blocks, do_blocks, dk, dv,
    stats, reach, scales,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, SOFTCAP: tl.constexpr,
    VARLEN: tl.constexpr, USE_TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Writes dK and dV of one tile of keys, summed over the query heads of its group."""
    # TMA fills rows beyond a dense tensor with zeros. Rows behind a packed sequence are the next's.
    ZERO_FILLS: tl.constexpr = USE_TMA and not VARLEN
    q_begin, k_begin, stats_begin, seqlen_q, seqlen_k = sequence
    first = tile * BLOCK_N
    begin, clear, blurred, end = _visible_queries(
        first, seqlen_q, seqlen_k, reach, CAUSAL, WINDOWED, ZERO_FILLS,
        BLOCK_M, BLOCK_N)  # fmt: skip
    k_all = _blocks(k, k, batch, head_kv, k_begin, False, VARLEN)
    v_all = _blocks(v, v, batch, head_kv, k_begin, False, VARLEN)
    kv = (_load_rows(k_all, first, seqlen_k, HEAD_DIM, PAD_D, BLOCK_N, False, True),
          _load_rows(v_all, first, seqlen_k, HEAD_DIM_V, PAD_DV, BLOCK_N, False, True))  # fmt: skip
    # The first and the last query that see each key.
    keys = first + tl.arange(0, BLOCK_N) - (seqlen_k - seqlen_q)
    sight = (keys - reach[1], keys + reach[0])
    dk_acc, dv_acc = tl.zeros([BLOCK_N, PAD_D], tl.float32), tl.zeros([BLOCK_N, PAD_DV], tl.float32)
    for member in range(GROUP):
        head = head_kv * GROUP + member
        rows = _stats(stats, batch, head, heads, stats_begin, VARLEN)
        q_head = _blocks(q, q_blocks, batch, head, q_begin, ZERO_FILLS, VARLEN)
        do_head = _blocks(do, do_blocks, batch, head, q_begin, ZERO_FILLS, VARLEN)
        if CAUSAL:  # otherwise `clear` is 0
            dk_acc, dv_acc = _query_blocks(
                dk_acc, dv_acc, kv, q_head, do_head, rows, begin, tl.minimum(clear, end),
                seqlen_q, sight, scales, HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, BLOCK_M, True, CAUSAL,
                WINDOWED, SOFTCAP, ZERO_FILLS, PRECISION)  # fmt: skip
        q_inner = _blocks(q, q_blocks, batch, head, q_begin, USE_TMA, VARLEN)
        do_inner = _blocks(do, do_blocks, batch, head, q_begin, USE_TMA, VARLEN)
        dk_acc, dv_acc = _query_blocks(
            dk_acc, dv_acc, kv, q_inner, do_inner, rows, clear, blurred,
            seqlen_q, sight, scales, HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, BLOCK_M, False, CAUSAL,
            WINDOWED, SOFTCAP, USE_TMA, PRECISION)  # fmt: skip
        if WINDOWED or not ZERO_FILLS:
            dk_acc, dv_acc = _query_blocks(
                dk_acc, dv_acc, kv, q_head, do_head, rows, tl.maximum(clear, blurred), end,
                seqlen_q, sight, scales, HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, BLOCK_M, True, CAUSAL,
                WINDOWED, SOFTCAP, ZERO_FILLS, PRECISION)  # fmt: skip
    _store_rows(_head(dk, batch, head_kv, k_begin), dk[3], first, seqlen_k, dk_acc * scales[0],
                HEAD_DIM, PAD_D, BLOCK_N)  # fmt: skip
    _store_rows(_head(dv, batch, head_kv, k_begin), dv[3], first, seqlen_k, dv_acc,
                HEAD_DIM_V, PAD_DV, BLOCK_N)  # fmt: skip


@triton.jit
def _visible_queries(
    first, seqlen_q, seqlen_k, reach,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, ZERO_FILLS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Returns (begin, clear, blurred, end): only queries [begin, end) see keys of the tile that
    begins at key `first`, and queries [clear, blurred) see all of them. `clear` may be above
    `blurred`. Where rows after the last query are loaded as zeros, they need no mask."""
    last = tl.minimum(first + BLOCK_N, seqlen_k) - 1
    offset = seqlen_k - seqlen_q
    begin, clear, end = 0, 0, seqlen_q
    blurred = seqlen_q if ZERO_FILLS else seqlen_q // BLOCK_M * BLOCK_M
    if CAUSAL:
        begin = tl.maximum(first - offset - reach[1], 0) // BLOCK_M * BLOCK_M
        clear = tl.cdiv(tl.maximum(last - offset - reach[1], 0), BLOCK_M) * BLOCK_M
    if WINDOWED:
        end = tl.minimum(last - offset + reach[0] + 1, seqlen_q)
        left_clear = tl.maximum(first - offset + reach[0] + 1, 0) // BLOCK_M * BLOCK_M
        blurred = tl.minimum(blurred, left_clear)
    return begin, clear, blurred, end


@triton.jit
def _query_blocks(
    dk, dv, kv, q_source, do_source, stats, begin, end, seqlen_q, sight, scales,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, MASK: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
    SOFTCAP: tl.constexpr, USE_TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds to dK and dV what the query rows [begin, end) of one head contribute. Scores are
    transposed: (keys, queries), so that P and dS are left operands, which may stay in registers."""
    for start in tl.range(begin, end, BLOCK_M):
        start = tl.multiple_of(start, BLOCK_M)
        queries = start + tl.arange(0, BLOCK_M)
        q = _load_rows(q_source, start, seqlen_q, HEAD_DIM, PAD_D, BLOCK_M, USE_TMA, MASK)
        lse = tl.load(stats[0] + queries)
        s = tl.dot(kv[0], q.T, input_precision=PRECISION)
        p, slope = _probabilities(s, lse[None, :], scales, SOFTCAP)
        if MASK and CAUSAL:
            p = tl.where(queries[None, :] >= sight[0][:, None], p, 0.0)
        if MASK and WINDOWED:
            p = tl.where(queries[None, :] <= sight[1][:, None], p, 0.0)
        do = _load_rows(do_source, start, seqlen_q, HEAD_DIM_V, PAD_DV, BLOCK_M, USE_TMA, MASK)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision=PRECISION)
        delta = tl.load(stats[1] + queries)
        dp = tl.dot(kv[1], do.T, input_precision=PRECISION)
        ds = p * (dp - delta[None, :]) * slope
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv


# -------------------------------------------------------------------------- dQ of a tile of queries


@triton.jit
def _query_tile(
    tile, batch, head, heads, sequence, q, k, v, do, k_blocks, v_blocks, dq, stats, reach, scales,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    GROUP: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, SOFTCAP: tl.constexpr,
    VARLEN: tl.constexpr, USE_TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Writes dQ of one tile of query rows."""
    ZERO_FILLS: tl.constexpr = USE_TMA and not VARLEN
    head_kv = head // GROUP
    q_begin, k_begin, stats_begin, seqlen_q, seqlen_k = sequence
    first = tile * BLOCK_M
    begin, clear, blurred, end = _visible_keys(
        first, seqlen_q, seqlen_k, reach, CAUSAL, WINDOWED, BLOCK_M, BLOCK_N)  # fmt: skip
    q_source = _blocks(q, q, batch, head, q_begin, False, VARLEN)
    do_source = _blocks(do, do, batch, head, q_begin, False, VARLEN)
    q_tile = _load_rows(q_source, first, seqlen_q, HEAD_DIM, PAD_D, BLOCK_M, False, True)
    do_tile = _load_rows(do_source, first, seqlen_q, HEAD_DIM_V, PAD_DV, BLOCK_M, False, True)
    lse_ptr, delta_ptr = _stats(stats, batch, head, heads, stats_begin, VARLEN)
    queries = first + tl.arange(0, BLOCK_M)
    lse = tl.load(lse_ptr + queries, mask=queries < seqlen_q, other=float("inf"))
    delta = tl.load(delta_ptr + queries, mask=queries < seqlen_q, other=0.0)
    diagonal = queries + (seqlen_k - seqlen_q)
    # The first and the last key that each query sees.
    last_key = tl.zeros([BLOCK_M], tl.int32) + seqlen_k - 1
    if CAUSAL:
        last_key = tl.minimum(last_key, diagonal + reach[1])
    sight = (diagonal - reach[0], last_key)
    k_head = _blocks(k, k_blocks, batch, head_kv, k_begin, ZERO_FILLS, VARLEN)
    v_head = _blocks(v, v_blocks, batch, head_kv, k_begin, ZERO_FILLS, VARLEN)
    k_inner = _blocks(k, k_blocks, batch, head_kv, k_begin, USE_TMA, VARLEN)
    v_inner = _blocks(v, v_blocks, batch, head_kv, k_begin, USE_TMA, VARLEN)
    acc = tl.zeros([BLOCK_M, PAD_D], tl.float32)
    if WINDOWED:
        acc = _key_blocks(
            acc, q_tile, do_tile, k_head, v_head, lse, delta, begin, tl.minimum(clear, end),
            seqlen_k, sight, scales, HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, BLOCK_N, True,
            WINDOWED, SOFTCAP, ZERO_FILLS, PRECISION)  # fmt: skip
    acc = _key_blocks(
        acc, q_tile, do_tile, k_inner, v_inner, lse, delta, clear, blurred,
        seqlen_k, sight, scales, HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, BLOCK_N, False,
        WINDOWED, SOFTCAP, USE_TMA, PRECISION)  # fmt: skip
    acc = _key_blocks(
        acc, q_tile, do_tile, k_head, v_head, lse, delta, tl.maximum(clear, blurred), end,
        seqlen_k, sight, scales, HEAD_DIM, HEAD_DIM_V, PAD_D, PAD_DV, BLOCK_N, True,
        WINDOWED, SOFTCAP, ZERO_FILLS, PRECISION)  # fmt: skip
    _store_rows(_head(dq, batch, head, q_begin), dq[3], first, seqlen_q, acc * scales[0],
                HEAD_DIM, PAD_D, BLOCK_M)  # fmt: skip


@triton.jit
def _visible_keys(
    first, seqlen_q, seqlen_k, reach,
    CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Returns (begin, clear, blurred, end): rows of the tile that begins at query `first` see only
    keys [begin, end), and all of them see keys [clear, blurred). `clear` may be above `blurred`."""
    last = tl.minimum(first + BLOCK_M, seqlen_q) - 1
    offset = seqlen_k - seqlen_q
    begin, clear, end = 0, 0, seqlen_k
    blurred = seqlen_k // BLOCK_N * BLOCK_N
    if CAUSAL:
        end = tl.minimum(last + offset + reach[1] + 1, seqlen_k)
        right_clear = tl.maximum(first + offset + reach[1] + 1, 0) // BLOCK_N * BLOCK_N
        blurred = tl.minimum(blurred, right_clear)
    if WINDOWED:
        begin = tl.maximum(first + offset - reach[0], 0) // BLOCK_N * BLOCK_N
        clear = tl.cdiv(tl.maximum(last + offset - reach[0], 0), BLOCK_N) * BLOCK_N
    return begin, clear, blurred, end


@triton.jit
def _key_blocks(
    dq, q, do, k_source, v_source, lse, delta, begin, end, seqlen_k, sight, scales,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, MASK: tl.constexpr, WINDOWED: tl.constexpr, SOFTCAP: tl.constexpr,
    USE_TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Adds to dQ what the keys [begin, end) contribute."""
    for start in tl.range(begin, end, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        k = _load_rows(k_source, start, seqlen_k, HEAD_DIM, PAD_D, BLOCK_N, USE_TMA, MASK)
        s = tl.dot(q, k.T, input_precision=PRECISION)
        p, slope = _probabilities(s, lse[:, None], scales, SOFTCAP)
        if MASK:
            keys = start + tl.arange(0, BLOCK_N)
            p = tl.where(keys[None, :] <= sight[1][:, None], p, 0.0)
            if WINDOWED:
                p = tl.where(keys[None, :] >= sight[0][:, None], p, 0.0)
        v = _load_rows(v_source, start, seqlen_k, HEAD_DIM_V, PAD_DV, BLOCK_N, USE_TMA, MASK)
        dp = tl.dot(do, v.T, input_precision=PRECISION)
        ds = p * (dp - delta[:, None]) * slope
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


# ------------------------------------------------------------------ probabilities, loads and stores


@triton.jit
def _probabilities(s, lse, scales, SOFTCAP: tl.constexpr):
    """Returns (exp(score - lse), slope of the soft-cap) for products `s` = q @ k^T.

    With a soft-cap c a score is c * tanh(scale * s / c), and tanh(x) = 1 - 2 / (exp(2 * x) + 1).
    """
    slope = 1.0
    if SOFTCAP:
        rest = 1.0 / (tl.exp2(s * scales[2]) + 1.0)
        slope = 4.0 * rest * (1.0 - rest)
        s = 1.0 - 2.0 * rest
    return tl.exp2(s * scales[1] - lse), slope


@triton.jit
def _head(place, batch, head, begin):
    """Returns a pointer to row `begin` of one head."""
    return (
        place[0]
        + batch.to(tl.int64) * place[1]
        + head.to(tl.int64) * place[2]
        + place[3].to(tl.int64) * begin
    )


@triton.jit
def _stats(stats, batch, head, heads, begin, VARLEN: tl.constexpr):
    """Returns pointers to lse and delta of the first row of one head."""
    index = head if VARLEN else batch * heads + head
    first = index.to(tl.int64) * stats[2] + begin
    return stats[0] + first, stats[1] + first


@triton.jit
def _blocks(
    place, descriptor, batch, head, begin, USE_TMA: tl.constexpr, VARLEN: tl.constexpr
):  # fmt: skip
    """Returns what `_load_rows` loads one head of a sequence from, whose first row is `begin`."""
    if USE_TMA:
        source = (descriptor, 0 if VARLEN else batch, head, begin)
    else:
        source = (_head(place, batch, head, begin), place[3])
    return source


@triton.jit
def _load_rows(
    source, start, seqlen, WIDTH: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr,
    USE_TMA: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    """Loads rows [start, start + ROWS) of one head: (ROWS, PAD), zero beyond WIDTH and, with MASK,
    beyond seqlen. `source` is what `_blocks` returns."""
    if USE_TMA:
        block = source[0].load([source[1], source[2], source[3] + start, 0]).reshape([ROWS, PAD])
    else:
        rows = tl.arange(0, ROWS)
        cols = tl.arange(0, PAD)
        first = source[0] + start.to(tl.int64) * source[1]
        where = first + rows[:, None] * source[1] + cols[None, :]
        if MASK and PAD != WIDTH:
            real = (start + rows < seqlen)[:, None] & (cols < WIDTH)[None, :]
            block = tl.load(where, mask=real, other=0.0)
        elif MASK:
            block = tl.load(where, mask=(start + rows < seqlen)[:, None], other=0.0)
        elif PAD != WIDTH:
            block = tl.load(where, mask=(cols < WIDTH)[None, :], other=0.0)
        else:
            block = tl.load(where)
    return block


@triton.jit
def _store_rows(
    target, row_stride, start, seqlen, block,
    WIDTH: tl.constexpr, PAD: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Stores rows [start, start + ROWS) of one head that exist."""
    rows = tl.arange(0, ROWS)
    cols = tl.arange(0, PAD)
    target += start.to(tl.int64) * row_stride
    tl.store(
        target + rows[:, None] * row_stride + cols[None, :],
        block.to(target.dtype.element_ty),
        mask=(start + rows < seqlen)[:, None] & (cols < WIDTH)[None, :],
    )
