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
from tunefa.kernels.gluon.gradient_passes import P_DOWN, P_SHIFT, start_transposed
from tunefa.kernels.gluon.layouts import operand_layout, row_layout, wgmma_layout
from tunefa.kernels.gluon.persistent import first_tile

LOG2_E = gl.constexpr(math.log2(math.e))


@gluon.jit
def consumer(work, WG: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Computes dQ, lse in powers of two and delta of warpgroup WG's rows in the tiles of this CTA.

    `work` is (launch, shared memory, pointers of the row sums, descriptor of dQ, table of tiles).
    """
    b, _, _, _, table = work
    if b.PERSISTENT:
        blocks = 0
        first, count, number = first_tile(table)
        for done in range(0, count):
            following = gl.load(table + first + done + 1)
            tile = b.tile(number)
            _tile(work, tile, done, blocks, WG, HEAD_DIM)
            blocks += tile.blocks
            number = following
    else:
        _tile(work, b.tile(gl.program_id(0)), 0, 0, WG, HEAD_DIM)
    tma.store_wait(0)


@gluon.jit
def _tile(work, tile, done, blocks, WG: gl.constexpr, HEAD_DIM: gl.constexpr):
    """Computes the rows of a tile; `done` tiles and `blocks` blocks came before it."""
    b, shared, sums, dq_desc, _ = work
    row = tile.row + 64 * WG
    piece, phase = done % b.Q_STAGES * b.WARPGROUPS + WG, (done // b.Q_STAGES) & 1
    end = blocks + tile.blocks
    past = end + tile.first  # the number of a block is past - 1 - its place in the sequence
    number = past - b.end(row, 64)
    if b.WINDOWED:  # rows beyond seqlen_q see none
        number = gl.minimum(number, end - 1)
    if b.WARPGROUPS > 1:
        _skip(b, shared, blocks, number)
    loaded = _load_rows(b, sums, tile, row, HEAD_DIM)
    s = gl.zeros([64, b.BLOCK_N], gl.float32, wgmma_layout(b.BLOCK_N))
    mbarrier.wait(shared.q_full.index(piece), phase)
    q = _left_operand(b, shared.q_rows(piece))
    if b.PREFETCH_S:
        s_started = _start_s(b, shared, q, number, True)
    mbarrier.wait(shared.do_full.index(piece), phase)
    of_rows = _row_sums(b, sums, tile, row, loaded, shared.do_rows(piece))
    do = _left_operand(b, shared.do_rows(piece))
    if b.PREFETCH_S:
        s = warpgroup_mma_wait(0, [s_started])
    if b.PERSISTENT and b.Q_STAGES > 1:
        tma.store_wait(0)  # dQ of the tile before has left
        if done > 0:
            before = (done - 1) % b.Q_STAGES * b.WARPGROUPS + WG
            mbarrier.arrive(shared.q_empty.index(before), count=1)
    dq = gl.zeros([64, b.COLUMNS], gl.float32, wgmma_layout(b.COLUMNS))
    state = _blocks(b, shared, (q, do), of_rows, (s, dq), (end, past), number, row)
    _, dq = state
    _write(b, shared, dq_desc, dq * b.scale, tile, row, piece)


@gluon.jit
def _blocks(b, shared, operands, of_rows, state, ends, number, row):
    """Adds the key blocks from `number` on to dQ; see `_step`. Only those that some of the rows do
    not see as a whole are masked."""
    end, past = ends
    state = _step(b, shared, operands, of_rows, state, ends, number, row, b.MASKED)
    number += 1
    if b.MASK_LOOP:
        masked = gl.minimum(gl.maximum(past - b.unmasked(row), number), end)
        for i in range(number, masked):
            state = _step(b, shared, operands, of_rows, state, ends, i, row, True)
        number = masked
    whole = end
    if b.WINDOWED:
        whole = gl.minimum(gl.maximum(past - b.windowed(row), number), end)
    for i in range(number, whole):
        state = _step(b, shared, operands, of_rows, state, ends, i, row, False)
    if b.WINDOWED:
        for i in range(whole, end):
            state = _step(b, shared, operands, of_rows, state, ends, i, row, True)
    return state


@gluon.jit
def _left_operand(b, rows):
    """Returns Q or dO of the warpgroup as it multiplies K or V from the left."""
    if b.Q_IN_REGISTERS:
        layout: gl.constexpr = operand_layout(b.BLOCK_N, 16)
        rows = rows.load(layout)
    return rows


@gluon.jit
def _write(b, shared, dq_desc, dq, tile, row, piece):
    """Sends dQ to memory by TMA, which leaves out the rows beyond seqlen_q.

    It leaves through the memory of Q, which no other warpgroup reads. With one stage of Q that is
    released here, with two during the next tile, when dQ has left.
    """
    shared.q_rows(piece).store(dq.to(dq_desc.dtype))
    fence_async_shared()
    copy_out(dq_desc, (tile.batch, tile.head, row, 0), shared.q.index(piece))
    if b.PERSISTENT and b.Q_STAGES == 1:
        tma.store_wait(0)
        mbarrier.arrive(shared.q_empty.index(piece), count=1)


@gluon.jit
def _skip(b, shared, begin, end):
    """Releases blocks of the tile that none of the warpgroup's rows sees: its first ones."""
    for number in range(begin, end):
        stage = number % b.K_STAGES
        mbarrier.wait(shared.k_full.index(stage), (number // b.K_STAGES) & 1)
        mbarrier.arrive(shared.k_empty.index(stage), count=1)
        stage = number % b.V_STAGES
        mbarrier.wait(shared.v_full.index(stage), (number // b.V_STAGES) & 1)
        mbarrier.arrive(shared.v_empty.index(stage), count=1)


@gluon.constexpr_function
def _loaded_layout(columns):
    """Registers of 64 rows, 16 bytes next to each other in each thread. A thread has the rows of
    its part of a WGMMA accumulator, so that sums of rows need not move."""
    registers = [[0, 1], [0, 2], [0, 4], [8, 0]]
    column = 32
    while column < columns:
        registers.append([0, column])
        column *= 2
    lanes = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, columns])


@gluon.jit
def _load_rows(b, sums, tile, row, HEAD_DIM: gl.constexpr):
    """Returns out, lse and dlse of 64 rows from `row` on; `sums` are the pointers."""
    out, dlse, lse_ptr, _, _ = sums
    out_ptr, out_batch, out_head, out_row = out
    dlse_ptr, dlse_batch, dlse_head, dlse_row = dlse
    layout: gl.constexpr = _loaded_layout(b.COLUMNS)
    each = row + gl.arange(0, 64, gl.SliceLayout(1, layout))
    columns = gl.arange(0, b.COLUMNS, gl.SliceLayout(0, layout))
    at = 8 * (tile.batch * out_batch + tile.head * out_head + each * out_row)
    inside = (each < b.seqlen_q)[:, None] & (columns < HEAD_DIM)[None, :]
    out = gl.load(out_ptr + (at[:, None] + columns[None, :]), mask=inside, other=0.0)
    mine = row + gl.arange(0, 64, row_layout(b.BLOCK_N))
    exists = mine < b.seqlen_q
    before = (tile.batch * b.heads + tile.head) * b.seqlen_q
    lse = gl.load(lse_ptr + (before + mine), mask=exists, other=-float("inf"))
    at = tile.batch * dlse_batch + tile.head * dlse_head + mine * dlse_row
    return out, lse, gl.load(dlse_ptr + at, mask=exists, other=0.0)


@gluon.jit
def _row_sums(b, sums, tile, row, loaded, do):
    """Returns lse in powers of two and delta = rowsum(dO * out) - dlse of the warpgroup's rows, and
    writes both for the pass that computes dK and dV.

    Rows that see no key, and rows beyond seqlen_q, get lse = inf, so that their probabilities are
    0, and delta = 0. With P_BYTES 2 that pass takes others, see `P_SHIFT`. `loaded` is what
    `_load_rows` returned.
    """
    _, _, _, lse_log2_ptr, delta_ptr = sums
    out, lse, dlse = loaded
    do = do.load(_loaded_layout(b.COLUMNS)).to(gl.float32)
    delta = gl.sum(out.to(gl.float32) * do, 1)
    delta = gl.convert_layout(delta, row_layout(b.BLOCK_N), assert_trivial=True) - dlse
    sees = lse != -float("inf")  # NaN stays NaN
    lse_log2 = gl.where(sees, lse * LOG2_E, float("inf"))
    delta = gl.where(sees, delta, 0.0)
    mine = row + gl.arange(0, 64, row_layout(b.BLOCK_N))
    kept = (tile.batch * b.heads + tile.head) * b.rows + mine
    written_lse, written_delta = lse_log2, delta
    if b.P_BYTES == 2:
        written_lse, written_delta = lse_log2 - P_SHIFT, delta * P_DOWN
    gl.store(lse_log2_ptr + kept, written_lse, mask=mine < b.rows)
    gl.store(delta_ptr + kept, written_delta, mask=mine < b.rows)
    return lse_log2, delta


@gluon.jit
def _start_s(b, shared, q, number, exists):
    """Starts S = Q @ K^T of a block when its K has arrived. A block that does not exist is not
    waited for: its S is that of an old block, and is not used."""
    stage = number % b.K_STAGES
    mbarrier.wait(shared.k_full.index(stage), (number // b.K_STAGES) & 1, pred=exists)
    return start_transposed(q, shared.k_block(stage), b.BLOCK_N)


@gluon.jit
def _step(b, shared, operands, of_rows, state, ends, number, row, MASK: gl.constexpr):
    """Adds a key block to dQ. Returns, with PREFETCH_S, the next block's S, and dQ.

    `operands` are Q and dO, `of_rows` lse and delta. `state` is what the step before returned.
    `ends` are the number of the first block of the next tile, and that at which key 0 would end.
    """
    end, past = ends
    q, do = operands
    lse, delta = of_rows
    s, dq = state
    k_stage, v_stage = number % b.K_STAGES, number % b.V_STAGES
    k = shared.k_block(k_stage)
    exists = number + 1 < end
    if b.PREFETCH_S == 0:
        s_started = _start_s(b, shared, q, number, True)
    mbarrier.wait(shared.v_full.index(v_stage), (number // b.V_STAGES) & 1)
    dp_started = start_transposed(do, shared.v_block(v_stage), b.BLOCK_N)
    if b.PREFETCH_S == 0:
        s = warpgroup_mma_wait(1, [s_started])
    if b.PREFETCH_S == 2:
        next_started = _start_s(b, shared, q, number + 1, exists)
    p = gl.exp2(s * b.scale_log2 - lse[:, None])
    if MASK:
        p = b.masked(p, row, (past - 1 - number) * b.BLOCK_N)
    dp = warpgroup_mma_wait(1 if b.PREFETCH_S == 2 else 0, [dp_started])
    mbarrier.arrive(shared.v_empty.index(v_stage), count=1)
    ds = (p * (dp - delta[:, None])).to(k.dtype)
    ds_operand = gl.convert_layout(ds, operand_layout(b.COLUMNS, 16))
    if b.PREFETCH_S == 1:
        next_started = _start_s(b, shared, q, number + 1, exists)
    dq_started = warpgroup_mma(ds_operand, k, dq, is_async=True)
    if b.PREFETCH_S:
        s = warpgroup_mma_wait(1, [next_started])
    dq = warpgroup_mma_wait(0, [dq_started])
    mbarrier.arrive(shared.k_empty.index(k_stage), count=1)
    return s, dq
