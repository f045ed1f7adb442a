"""The kernels before and after the attention backward on Hopper: row sums, and dQ's dtype."""

import triton
from triton import language as tl

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def prepare_rows(
    out_ptr, do_ptr, lse_ptr, dlse_ptr, lse_log2_ptr, delta_ptr, dq_sum_ptr,
    heads, seqlen_q, rows, out_batch, out_head, out_row, do_batch, do_head, do_row,
    dlse_batch, dlse_head, dlse_row,
    HEAD_DIM: tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Writes, for each head, `rows` numbers of lse in powers of two and of delta =
    rowsum(dout * out) - dlse, and zeros to dQ's accumulator (`rows`, COLUMNS).

    Rows that see no key, and rows beyond seqlen_q, get lse = inf, so that their probabilities are
    0. Strides of out and dout are in units of eight elements, those of dlse in elements.
    """
    blocks = rows // ROWS
    head_number = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = head_number // heads, head_number % heads
    row = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    exists = row < seqlen_q
    inside = exists[:, None] & (column < HEAD_DIM)[None, :]
    at = 8 * (batch * out_batch + head * out_head + row.to(tl.int64)[:, None] * out_row)
    out = tl.load(out_ptr + at + column[None, :], mask=inside, other=0.0).to(tl.float32)
    at = 8 * (batch * do_batch + head * do_head + row.to(tl.int64)[:, None] * do_row)
    do = tl.load(do_ptr + at + column[None, :], mask=inside, other=0.0).to(tl.float32)
    lse = tl.load(lse_ptr + head_number * seqlen_q + row, mask=exists, other=-float("inf"))
    at = batch * dlse_batch + head * dlse_head + row.to(tl.int64) * dlse_row
    delta = tl.sum(out * do, 1) - tl.load(dlse_ptr + at, mask=exists, other=0.0)
    sees = lse != -float("inf")  # NaN stays NaN
    made = head_number * rows + row
    tl.store(lse_log2_ptr + made, tl.where(sees, lse * LOG2_E, float("inf")))
    tl.store(delta_ptr + made, tl.where(sees, delta, 0.0))
    at = made[:, None] * COLUMNS + column[None, :]
    tl.store(dq_sum_ptr + at, tl.zeros([ROWS, COLUMNS], tl.float32))


@triton.jit
def write_dq(
    dq_sum_ptr, dq_ptr,
    scale, heads, seqlen_q, rows, dq_batch, dq_head, dq_row,
    HEAD_DIM: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Writes dQ = scale * its accumulator, 64 rows and WIDTH columns in each program.

    They lie one after the other in the accumulator, in the order that gluon/backward_dq.py
    describes. Strides of dQ are in units of eight elements.
    """
    blocks = rows // 64
    head_number = (tl.program_id(0) // blocks).to(tl.int64)
    batch, head = head_number // heads, head_number % heads
    first = tl.program_id(0) % blocks * 64
    begin = (head_number * rows + first) * COLUMNS + tl.program_id(1) * (64 * WIDTH)
    registers = tl.load(dq_sum_ptr + begin + tl.arange(0, 64 * WIDTH)) * scale
    # Groups of eight columns, warps, rows, pairs of columns, halves of 16 rows, columns.
    registers = registers.to(dq_ptr.dtype.element_ty).reshape([WIDTH // 8, 4, 8, 4, 2, 2])
    dq = registers.permute([1, 4, 2, 0, 3, 5]).reshape([64, WIDTH])
    row = first + tl.arange(0, 64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    at = 8 * (batch * dq_batch + head * dq_head + row.to(tl.int64)[:, None] * dq_row)
    inside = (row < seqlen_q)[:, None] & (column < HEAD_DIM)[None, :]
    tl.store(dq_ptr + at + column[None, :], dq, mask=inside)
