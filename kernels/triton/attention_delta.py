"""The preprocess kernel of ../attention_bwd_triton.py: lse and delta of each query row."""

import math

import triton
import triton.language as tl
from tunefa.kernels.triton.packed_sequences import bounds_of_sequence, tile_of_sequence

LOG2_E = tl.constexpr(math.log2(math.e))


@triton.jit
def attention_delta(
    out_ptr, do_ptr, lse_ptr, dlse_ptr, cu_seqlens_q_ptr, lse_log2_ptr, delta_ptr,
    o_batch, o_head, o_row, do_batch, do_head, do_row, lse_batch, lse_head, lse_row,
    dlse_batch, dlse_head, dlse_row, heads, seqlen_q, bounds, padded_rows, num_tiles, is_aligned,
    HEAD_DIM_V: tl.constexpr, PAD_DV: tl.constexpr, VARLEN: tl.constexpr,
    PADDING: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Writes lse * log2(e) and delta = rowsum(do * out) - dlse of PADDING rows of one head.

    A row that sees no key, or is beyond its sequence, gets lse = inf and delta = 0, so that its
    probabilities and gradients are 0. Both outputs are (batch * heads, padded_rows), or packed
    (heads, padded_rows), where sequence s begins PADDING * s rows later than in the queries.
    """
    tile = tl.program_id(0) % num_tiles
    index = tl.program_id(0) // num_tiles
    batch, head = index // heads, index % heads
    begin, after = 0, 0
    if VARLEN:
        batch, tile = tile_of_sequence(tile, cu_seqlens_q_ptr, bounds, PADDING)
        begin, seqlen_q = bounds_of_sequence(cu_seqlens_q_ptr, batch, bounds)
        after = batch * PADDING
        batch = 0
    first = tile * PADDING
    out_ptr += _head(o_batch, o_head, o_row, batch, head, begin)
    do_ptr += _head(do_batch, do_head, do_row, batch, head, begin)
    lse_ptr += _head(lse_batch, lse_head, lse_row, batch, head, begin)
    dlse_ptr += _head(dlse_batch, dlse_head, dlse_row, batch, head, begin)
    made = index.to(tl.int64) * padded_rows + begin + after
    if is_aligned:
        _delta_of_rows(out_ptr, o_row, do_ptr, do_row, lse_ptr, lse_row, dlse_ptr, dlse_row,
                       lse_log2_ptr + made, delta_ptr + made, first, seqlen_q,
                       HEAD_DIM_V, PAD_DV, PADDING, ROWS, 16)  # fmt: skip
    else:
        _delta_of_rows(out_ptr, o_row, do_ptr, do_row, lse_ptr, lse_row, dlse_ptr, dlse_row,
                       lse_log2_ptr + made, delta_ptr + made, first, seqlen_q,
                       HEAD_DIM_V, PAD_DV, PADDING, ROWS, 1)  # fmt: skip


@triton.jit
def _head(batch_stride, head_stride, row_stride, batch, head, begin):
    """Returns the offset of row `begin` of one head."""
    batches = batch_stride.to(tl.int64) * batch
    return batches + head_stride.to(tl.int64) * head + row_stride.to(tl.int64) * begin


@triton.jit
def _delta_of_rows(
    out_ptr, o_row, do_ptr, do_row, lse_ptr, lse_row, dlse_ptr, dlse_row, lse_log2_ptr, delta_ptr,
    tile, seqlen_q,
    HEAD_DIM_V: tl.constexpr, PAD_DV: tl.constexpr, PADDING: tl.constexpr, ROWS: tl.constexpr,
    MULTIPLE: tl.constexpr,
):  # fmt: skip
    """Writes lse and delta of the tile that begins at row `tile`. Rows of `out` and `do` begin at
    multiples of MULTIPLE elements."""
    cols = tl.arange(0, PAD_DV)
    exists = tile < seqlen_q + tl.zeros([ROWS], tl.int32)
    for first in range(tile, tile + PADDING, ROWS):
        rows = first + tl.arange(0, ROWS)
        real = rows < seqlen_q
        within = real[:, None] & (cols < HEAD_DIM_V)[None, :]
        place = rows.to(tl.int64)
        out_rows = tl.multiple_of(out_ptr + place * o_row, MULTIPLE)
        do_rows = tl.multiple_of(do_ptr + place * do_row, MULTIPLE)
        out = tl.load(out_rows[:, None] + cols[None, :], mask=within, other=0.0)
        do = tl.load(do_rows[:, None] + cols[None, :], mask=within, other=0.0)
        lse = tl.load(lse_ptr + place * lse_row, mask=real, other=float("-inf"))
        dlse = tl.load(dlse_ptr + place * dlse_row, mask=real, other=0.0)
        delta = tl.sum(out.to(tl.float32) * do.to(tl.float32), 1) - dlse
        unseen = lse == float("-inf")
        tl.store(lse_log2_ptr + rows, tl.where(unseen, float("inf"), lse * LOG2_E), mask=exists)
        tl.store(delta_ptr + rows, tl.where(unseen, 0.0, delta), mask=exists)
