"""The device code of attention_fwd_ascend.py, which describes the algorithm.

triton-ascend's own Python imports this file by its path, so it imports triton and nothing else.
"""

import triton
import triton.language as tl

MASKED = tl.constexpr(-1.0e30)
"""Stands for minus infinity, whose difference with itself is NaN."""


@triton.jit
def attention_fwd(
    Q, K, V, Out, Lse,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    o_batch, o_head, o_row,
    heads, group, seqlen_q, seqlen_k, num_tiles, tiles_per_head, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
    SPLIT_MASK_LOOP: tl.constexpr, TAIL_M: tl.constexpr, TAIL_N: tl.constexpr,
):  # fmt: skip
    """Computes the tiles of one core; strides are in elements.

    TAIL_M, TAIL_N: the last block of a head has fewer rows than the others.
    """
    last_key = (seqlen_k - 1).to(tl.float32)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        head = tile // tiles_per_head % heads
        batch = tile // tiles_per_head // heads
        row = tile % tiles_per_head * BLOCK_M  # the first of the tile
        q_block = tl.make_block_ptr(Q + batch * q_batch + head * q_head,
            (seqlen_q, HEAD_DIM), (q_row, 1), (row, 0), (BLOCK_M, HEAD_DIM), (1, 0))  # fmt: skip
        k_block = tl.make_block_ptr(K + batch * k_batch + head // group * k_head,
            (seqlen_k, HEAD_DIM), (k_row, 1), (0, 0), (BLOCK_N, HEAD_DIM), (1, 0))  # fmt: skip
        v_block = tl.make_block_ptr(V + batch * v_batch + head // group * v_head,
            (seqlen_k, HEAD_DIM), (v_row, 1), (0, 0), (BLOCK_N, HEAD_DIM), (1, 0))  # fmt: skip
        o_block = tl.make_block_ptr(Out + batch * o_batch + head * o_head,
            (seqlen_q, HEAD_DIM), (o_row, 1), (row, 0), (BLOCK_M, HEAD_DIM), (1, 0))  # fmt: skip
        q = _load_rows(q_block, TAIL_M)
        row_max = tl.full([BLOCK_M], MASKED, tl.float32)
        row_sum = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
        diagonal = row + seqlen_k - seqlen_q  # the last key that this row sees
        masked, end = _key_range(diagonal, seqlen_k, BLOCK_M, BLOCK_N, CAUSAL, TAIL_M, TAIL_N)
        if SPLIT_MASK_LOOP:
            for start in range(0, masked, BLOCK_N):
                row_max, row_sum, acc = _step(
                    q, k_block, v_block, row_max, row_sum, acc, scale, diagonal, last_key, start,
                    DIAGONAL=False, END=False, TAIL_N=False)  # fmt: skip
                k_block = tl.advance(k_block, (BLOCK_N, 0))
                v_block = tl.advance(v_block, (BLOCK_N, 0))
        else:
            masked = 0
        # A causal mask hides the keys beyond the end from every row that exists.
        for start in range(masked, end, BLOCK_N):
            row_max, row_sum, acc = _step(
                q, k_block, v_block, row_max, row_sum, acc, scale, diagonal, last_key, start,
                DIAGONAL=CAUSAL, END=TAIL_N and not CAUSAL, TAIL_N=TAIL_N)  # fmt: skip
            k_block = tl.advance(k_block, (BLOCK_N, 0))
            v_block = tl.advance(v_block, (BLOCK_N, 0))
        out = (acc / row_sum[:, None]).to(q.dtype)
        lse_rows = Lse + (batch * heads + head) * seqlen_q
        _store(o_block, out, lse_rows, row, seqlen_q, row_max, row_sum, BLOCK_M, TAIL_M)


@triton.jit
def _key_range(
    diagonal, seqlen_k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, TAIL_M: tl.constexpr, TAIL_N: tl.constexpr,
):  # fmt: skip
    """Returns (masked, end): no mask touches the keys [0, masked), and rows see keys up to end."""
    masked, end = seqlen_k, seqlen_k
    if CAUSAL:
        masked = (diagonal + 1) // BLOCK_N * BLOCK_N
        end = tl.minimum(diagonal + BLOCK_M, seqlen_k) if TAIL_M else diagonal + BLOCK_M
    elif TAIL_N:
        masked = seqlen_k // BLOCK_N * BLOCK_N
    return masked, end


@triton.jit
def _load_rows(block, TAIL: tl.constexpr):
    """Loads the rows of a block; with TAIL, zeros for rows beyond the end."""
    if TAIL:
        return tl.load(block, boundary_check=(0,), padding_option="zero")
    else:
        return tl.load(block)


@triton.jit
def _step(
    q, k_block, v_block, row_max, row_sum, acc, scale, diagonal, last_key, start,
    DIAGONAL: tl.constexpr, END: tl.constexpr, TAIL_N: tl.constexpr,
):  # fmt: skip
    """Attends to one block of keys, from `start` on; returns the new (row_max, row_sum, acc).

    DIAGONAL: a causal mask crosses the block. END: the block may have keys beyond the end.
    """
    s = tl.dot(q, tl.trans(_load_rows(k_block, TAIL_N))) * scale  # (BLOCK_M, BLOCK_N)
    # Compared in fp32, as the vector cores cannot compare integers; exact up to 2 ** 24 keys.
    if DIAGONAL:
        rows = (diagonal - start + tl.arange(0, s.shape[0])).to(tl.float32)
        columns = tl.arange(0, s.shape[1]).to(tl.float32)
        s = tl.where(rows[:, None] >= columns[None, :], s, MASKED)
    if END:
        columns = (start + tl.arange(0, s.shape[1])).to(tl.float32)
        s = tl.where((columns <= last_key)[None, :], s, MASKED)
    new_max = tl.maximum(row_max, tl.max(s, 1))
    p = tl.math.exp(s - new_max[:, None])
    row_scale = tl.math.exp(row_max - new_max)
    row_sum = row_sum * row_scale + tl.sum(p, 1)
    acc = tl.dot(p.to(q.dtype), _load_rows(v_block, TAIL_N), acc * row_scale[:, None])
    return new_max, row_sum, acc


@triton.jit
def _store(
    o_block, out, lse_rows, row, seqlen_q, row_max, row_sum,
    BLOCK_M: tl.constexpr, TAIL_M: tl.constexpr,
):  # fmt: skip
    """Writes output and logsumexp of a tile, with TAIL_M only of the rows that exist."""
    rows = row + tl.arange(0, BLOCK_M)
    lse = lse_rows + rows
    if TAIL_M:
        tl.store(o_block, out, boundary_check=(0,))
        tl.store(lse, row_max + tl.math.log(row_sum), mask=rows < seqlen_q)
    else:
        tl.store(o_block, out)
        tl.store(lse, row_max + tl.math.log(row_sum))
