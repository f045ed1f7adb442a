"""The steps of the dKV pass: 64 keys and one block of query rows each."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tunefa.kernels.gluon.api import copy_out
from tunefa.kernels.gluon.gradient_passes import start_transposed
from tunefa.kernels.gluon.layouts import as_matrix, operand_layout, wgmma_layout


@gluon.jit
def step(b, shared, operands, sums, place, MASK: gl.constexpr):
    """Adds a block of query rows to dK and dV. Returns dK, dV and the next step's S^T.

    `operands` are K and V of the warpgroup's keys. `sums` are dK, dV and, with PREFETCH_S, this
    step's S^T. `place` is (number of this step, number at which the tile ends, first row of the
    block, first key of the warpgroup).
    """
    k, v = operands
    dk, dv, s = sums
    number, end, row, key = place
    stage = number % b.Q_STAGES
    if b.PREFETCH_S == 0:
        s_started = start_s(b, shared, k, number, True)
    dp_started = start_dp(b, shared, v, number, True)
    if b.DEFER_ROW_LOADS < 2:
        lse = row_values(b, shared.lse, stage)
    if b.PREFETCH_S == 0:
        s = warpgroup_mma_wait(1, [s_started])
    if b.DEFER_ROW_LOADS == 2:
        lse = row_values(b, shared.lse, stage)
    p = probabilities(b, s, lse, row, key, MASK)
    dv_started = start_sum(b, p, shared.do_block(stage), dv)
    if b.PREFETCH_S == 2:
        s_started = start_s(b, shared, k, number + 1, number + 1 < end)
    if b.DEFER_ROW_LOADS == 0:
        delta = row_values(b, shared.delta, stage)
    dp = warpgroup_mma_wait(2 if b.PREFETCH_S == 2 else 1, [dp_started])
    if b.DEFER_ROW_LOADS > 0:
        delta = row_values(b, shared.delta, stage)
    ds = p * (dp - delta[None, :])
    dk_started = start_sum(b, ds, shared.q_block(stage), dk)
    if b.PREFETCH_S == 1:
        s_started = start_s(b, shared, k, number + 1, number + 1 < end)
    dv = warpgroup_mma_wait(2 if b.PREFETCH_S else 1, [dv_started])
    if b.PREFETCH_S == 2:
        s = warpgroup_mma_wait(1, [s_started])
    dk = warpgroup_mma_wait(1 if b.PREFETCH_S == 1 else 0, [dk_started])
    mbarrier.arrive(shared.empty.index(stage), count=1)
    if b.PREFETCH_S == 1:
        s = warpgroup_mma_wait(0, [s_started])
    return dk, dv, s


@gluon.jit
def start_s(b, shared, k, number, exists):
    """Starts S^T = K @ Q^T of a step when its Q has arrived. A step that does not exist is not
    waited for: its S^T is that of an old block, and is not used."""
    stage = number % b.Q_STAGES
    mbarrier.wait(shared.q_full.index(stage), (number // b.Q_STAGES) & 1, pred=exists)
    return start_transposed(k, shared.q_block(stage), b.BLOCK_M)


@gluon.jit
def start_dp(b, shared, v, number, exists):
    """Starts dP^T = V @ dO^T of a step when its dO has arrived; see `start_s`."""
    stage = number % b.Q_STAGES
    mbarrier.wait(shared.do_full.index(stage), (number // b.Q_STAGES) & 1, pred=exists)
    return start_transposed(v, shared.do_block(stage), b.BLOCK_M)


@gluon.jit
def row_values(b, buffer, stage):
    """Returns lse or delta of a block of query rows, one for each column of S^T."""
    rows: gl.constexpr = gl.SliceLayout(0, wgmma_layout(b.BLOCK_M))
    return buffer.index(stage).load(rows)


@gluon.jit
def probabilities(b, s, lse, row, key, MASK: gl.constexpr):
    """Returns P^T of a block of query rows."""
    p = gl.exp2(s * b.scale_log2 - lse[None, :])
    if MASK:
        p = b.masked(p, row, key)
    return p


@gluon.jit
def start_sum(b, left, block, acc):
    """Starts acc + left @ block; `left` is P^T or dS^T in fp32, `block` is dO or Q."""
    operand = gl.convert_layout(left.to(block.dtype), operand_layout(b.COLUMNS, 16))
    return warpgroup_mma(operand, block, acc, is_async=True)


@gluon.jit
def start_write(desc, tile, key, value, buffer):
    """Starts the TMA store of dK or dV of 64 keys, which leaves out keys beyond seqlen_k.

    It goes through the buffer of K or of V that no other warpgroup reads.
    """
    as_matrix(buffer).store(value.to(desc.dtype))
    fence_async_shared()
    copy_out(desc, (tile.batch, tile.head_kv, key, 0), buffer)
