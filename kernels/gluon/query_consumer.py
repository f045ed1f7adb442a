"""A consumer warpgroup of the pass that computes dQ: 64 query rows of a tile."""

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tunefa.kernels.gluon.api import copy_out
from tunefa.kernels.gluon.layouts import operand_layout, row_layout, wgmma_layout

LOG2_E = gl.constexpr(math.log2(math.e))


@gluon.jit
def consumer(work, WG: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Computes dQ, lse in powers of two and delta of the tile's rows of warpgroup WG.

    `work` is (launch, shared memory, pointers of the row sums, descriptor of dQ).
    """
    b, shared, sums, dq_desc = work
    tile = b.tile()
    row = tile.row + 64 * WG
    blocks = b.end(row, 64)
    number = tile.blocks - blocks
    if b.WARPGROUPS > 1:
        _skip(b, shared, number)
    of_rows = _row_sums(b, shared, sums, tile, row, WG, HEAD_DIM)
    s = gl.zeros([64, b.BLOCK_N], gl.float32, wgmma_layout(b.BLOCK_N))
    mbarrier.wait(shared.q_full.index(WG), 0)
    if b.PREFETCH_S:
        s = warpgroup_mma_wait(0, [_start_s(b, shared, number, True, WG)])
    dq = gl.zeros([64, b.COLUMNS], gl.float32, wgmma_layout(b.COLUMNS))
    state = _step(b, shared, of_rows, (s, dq), tile, number, row, b.MASKED, WG)
    number += 1
    if b.MASK_LOOP:
        masked = gl.maximum(tile.blocks - b.unmasked(row), number)
        for i in range(number, masked):
            state = _step(b, shared, of_rows, state, tile, i, row, True, WG)
        number = masked
    for i in range(number, tile.blocks):
        state = _step(b, shared, of_rows, state, tile, i, row, False, WG)
    _, dq = state
    # It leaves through the memory of Q, which only this warpgroup has read.
    shared.q_rows(WG).store((dq * b.scale).to(dq_desc.dtype))
    fence_async_shared()
    copy_out(dq_desc, (tile.batch, tile.head, row, 0), shared.q.index(WG))
    tma.store_wait(0)


@gluon.jit
def _skip(b, shared, blocks):
    """Releases the first blocks of the tile, which none of the warpgroup's rows sees."""
    for number in range(0, blocks):
        stage = number % b.K_STAGES
        mbarrier.wait(shared.k_full.index(stage), (number // b.K_STAGES) & 1)
        mbarrier.arrive(shared.k_empty.index(stage), count=1)
        stage = number % b.V_STAGES
        mbarrier.wait(shared.v_full.index(stage), (number // b.V_STAGES) & 1)
        mbarrier.arrive(shared.v_empty.index(stage), count=1)


@gluon.jit
def _row_sums(b, shared, sums, tile, row, WG: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Returns lse in powers of two and delta = rowsum(dO * out) - dlse of the warpgroup's rows, and
    writes both for the pass that computes dK and dV.

    Rows that see no key, and rows beyond seqlen_q, get lse = inf, so that their probabilities are
    0, and delta = 0.
    """
    out, dlse, lse_ptr, lse_log2_ptr, delta_ptr = sums
    out_ptr, out_batch, out_head, out_row = out
    dlse_ptr, dlse_batch, dlse_head, dlse_row = dlse
    # Each warp has the 16 rows of its part of an accumulator; a thread has 16 bytes of 4 rows.
    layout: gl.constexpr = gl.BlockedLayout([4, 8], [4, 8], [4, 1], [1, 0])
    each = row + gl.arange(0, 64, gl.SliceLayout(1, layout))
    columns = gl.arange(0, b.COLUMNS, gl.SliceLayout(0, layout))
    at = 8 * (tile.batch * out_batch + tile.head * out_head + each * out_row)
    inside = (each < b.seqlen_q)[:, None] & (columns < HEAD_DIM)[None, :]
    o = gl.load(out_ptr + (at[:, None] + columns[None, :]), mask=inside, other=0.0)
    rows: gl.constexpr = row_layout(b.BLOCK_N)
    mine = row + gl.arange(0, 64, rows)
    exists = mine < b.seqlen_q
    head = tile.batch * b.heads + tile.head
    lse = gl.load(lse_ptr + (head * b.seqlen_q + mine), mask=exists, other=-float("inf"))
    at = tile.batch * dlse_batch + tile.head * dlse_head + mine * dlse_row
    minus = gl.load(dlse_ptr + at, mask=exists, other=0.0)
    mbarrier.wait(shared.do_full.index(WG), 0)
    do = shared.do_rows(WG).load(layout)
    delta = gl.sum(o.to(gl.float32) * do.to(gl.float32), 1)
    delta = gl.convert_layout(delta, rows) - minus
    sees = lse != -float("inf")  # NaN stays NaN
    lse_log2 = gl.where(sees, lse * LOG2_E, float("inf"))
    delta = gl.where(sees, delta, 0.0)
    kept = head * b.rows + mine
    gl.store(lse_log2_ptr + kept, lse_log2, mask=mine < b.rows)
    gl.store(delta_ptr + kept, delta, mask=mine < b.rows)
    return lse_log2, delta


@gluon.jit
def _start_s(b, shared, number, exists, WG: gl.constexpr):
    """Starts S = Q @ K^T of a block when its K has arrived. A block that does not exist is not
    waited for: its S is that of an old block, and is not used."""
    stage = number % b.K_STAGES
    mbarrier.wait(shared.k_full.index(stage), (number // b.K_STAGES) & 1, pred=exists)
    return _start_transposed(b, shared.q_rows(WG), shared.k_block(stage))


@gluon.jit
def _start_transposed(b, a, keys):
    """Starts a @ keys^T, (64 query rows, BLOCK_N keys)."""
    zeros = gl.zeros([64, b.BLOCK_N], gl.float32, wgmma_layout(b.BLOCK_N))
    return warpgroup_mma(a, keys.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _step(
    b, shared, of_rows, state, tile, number, row, MASK: gl.constexpr, WG: gl.constexpr
):  # fmt: skip
    """Adds a key block to dQ. Returns, with PREFETCH_S, the next block's S, and dQ.

    `of_rows` are lse and delta. `state` is what the step before returned.
    """
    lse, delta = of_rows
    s, dq = state
    k_stage, v_stage = number % b.K_STAGES, number % b.V_STAGES
    k = shared.k_block(k_stage)
    exists = number + 1 < tile.blocks
    if b.PREFETCH_S == 0:
        s_started = _start_s(b, shared, number, True, WG)
    mbarrier.wait(shared.v_full.index(v_stage), (number // b.V_STAGES) & 1)
    dp_started = _start_transposed(b, shared.do_rows(WG), shared.v_block(v_stage))
    if b.PREFETCH_S == 0:
        s = warpgroup_mma_wait(1, [s_started])
    if b.PREFETCH_S == 2:
        next_started = _start_s(b, shared, number + 1, exists, WG)
    p = gl.exp2(s * b.scale_log2 - lse[:, None])
    if MASK:
        p = b.masked(p, row, (tile.blocks - 1 - number) * b.BLOCK_N)
    dp = warpgroup_mma_wait(1 if b.PREFETCH_S == 2 else 0, [dp_started])
    mbarrier.arrive(shared.v_empty.index(v_stage), count=1)
    ds = (p * (dp - delta[:, None])).to(k.dtype)
    ds_operand = gl.convert_layout(ds, operand_layout(b.COLUMNS, 16))
    if b.PREFETCH_S == 1:
        next_started = _start_s(b, shared, number + 1, exists, WG)
    dq_started = warpgroup_mma(ds_operand, k, dq, is_async=True)
    if b.PREFETCH_S:
        s = warpgroup_mma_wait(1, [next_started])
    dq = warpgroup_mma_wait(0, [dq_started])
    mbarrier.arrive(shared.k_empty.index(k_stage), count=1)
    return s, dq
