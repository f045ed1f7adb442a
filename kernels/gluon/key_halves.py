"""The two consumer warpgroups of the dKV pass with 256 columns, which work on the same 64 keys.

The registers of one warpgroup hold one accumulator of 64 x 256. So warpgroup 0 computes dV and
warpgroup 1 dK, two products in a step each, and P^T goes from one to the other, in fp32 or, with
P_BYTES 2, in fp16 and times 2^P_SHIFT: from 2^-29 on its error of 2^-12 is less than that of
rounding dS^T to 16 bits.

    warpgroup 0                               warpgroup 1
    -----------                               -----------
    S^T = K Q^T, P^T = exp2(S^T - lse)        dP^T = V dO^T
                                 -- P^T -->   dS^T = P^T * (dP^T - delta)
    dV += P^T dO                              dK += dS^T Q

Each starts its first product of the next step together with the second one of this step.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait
from tunefa.kernels.gluon.gradient_passes import P_DOWN
from tunefa.kernels.gluon.key_step import (
    probabilities,
    row_values,
    start_dp,
    start_s,
    start_sum,
    start_write,
)
from tunefa.kernels.gluon.layouts import as_matrix, wgmma_layout


@gluon.constexpr_function
def p_shape(block_m):
    """The shape of a P^T in shared memory, in which 16 bytes of each thread are contiguous."""
    return [block_m // 4, 256]


# -------------------------------------------------------------------------------- warpgroup 0: dV


@gluon.jit
def values_consumer(work):
    """Computes P^T for both warpgroups, and dV. `work` is that of `key_consumer.consumer`."""
    b, shared, outputs, _ = work
    _, dv_desc = outputs
    tile = b.tile(gl.program_id(0))
    mbarrier.wait(shared.k_full.index(0), 0)
    dv = gl.zeros([64, b.COLUMNS], gl.float32, wgmma_layout(b.COLUMNS))
    s = warpgroup_mma_wait(0, [start_s(b, shared, as_matrix(shared.k.index(0)), 0, True)])
    sums = (dv, s)
    count = b.group() * tile.blocks
    for member in range(0, b.group()):
        before = member * tile.blocks
        if b.MASKED:
            for block in range(0, tile.masked):
                place = (before + block, count, tile.row + block * b.BLOCK_M, tile.key)
                sums = _values_step(b, shared, sums, place, True)
        for block in range(tile.masked, tile.whole):
            place = (before + block, count, tile.row + block * b.BLOCK_M, tile.key)
            sums = _values_step(b, shared, sums, place, False)
        if b.WINDOWED:
            for block in range(tile.whole, tile.blocks):
                place = (before + block, count, tile.row + block * b.BLOCK_M, tile.key)
                sums = _values_step(b, shared, sums, place, True)
    dv, _ = sums
    if b.P_BYTES == 2:
        dv *= P_DOWN
    # Warpgroup 1 may still read V. K is read by this warpgroup alone.
    start_write(dv_desc, tile, tile.key, dv, shared.k.index(0))
    tma.store_wait(0)


@gluon.jit
def _values_step(b, shared, sums, place, MASK: gl.constexpr):
    """Adds a block of query rows to dV, and hands P^T over. Returns dV and the next step's S^T."""
    dv, s = sums
    number, count, row, key = place
    stage = number % b.Q_STAGES
    p = probabilities(b, s, row_values(b, shared.lse, stage), row, key, MASK)
    _hand_over(b, shared, p, number)  # before dV, as the other warpgroup waits for it
    mbarrier.wait(shared.do_full.index(stage), (number // b.Q_STAGES) & 1)
    dv_started = start_sum(b, p, shared.do_block(stage), dv)
    k = as_matrix(shared.k.index(0))
    s_started = start_s(b, shared, k, number + 1, number + 1 < count)
    dv = warpgroup_mma_wait(1, [dv_started])
    mbarrier.arrive(shared.empty.index(stage), count=1)
    s = warpgroup_mma_wait(0, [s_started])
    return dv, s


@gluon.jit
def _hand_over(b, shared, p, number):
    """Stores P^T of a step for the other warpgroup.

    There is a buffer for each stage of Q. So nothing waits for an empty one: Q of this step went
    into its stage when the other warpgroup had finished the step that was there before.
    """
    stage = number % b.Q_STAGES
    buffer = shared.p.index(stage)
    buffer.store(_in_register_order(p.to(buffer.dtype), b.P_BYTES))
    mbarrier.arrive(shared.p_full.index(stage), count=1)


# -------------------------------------------------------------------------------- warpgroup 1: dK


@gluon.jit
def keys_consumer(work):
    """Computes dS^T and dK. `work` is that of `key_consumer.consumer`."""
    b, shared, outputs, _ = work
    dk_desc, _ = outputs
    tile = b.tile(gl.program_id(0))
    mbarrier.wait(shared.v_full.index(0), 0)
    dk = gl.zeros([64, b.COLUMNS], gl.float32, wgmma_layout(b.COLUMNS))
    dp = warpgroup_mma_wait(0, [start_dp(b, shared, as_matrix(shared.v.index(0)), 0, True)])
    count = b.group() * tile.blocks
    for number in range(0, count):
        dk, dp = _keys_step(b, shared, dk, dp, number, count)
    start_write(dk_desc, tile, tile.key, dk * b.scale, shared.v.index(0))
    tma.store_wait(0)


@gluon.jit
def _keys_step(b, shared, dk, dp, number, count):
    """Adds a block of query rows to dK. Returns dK and the next step's dP^T."""
    stage = number % b.Q_STAGES
    delta = row_values(b, shared.delta, stage)
    p = _taken_over(b, shared, number)
    ds = p * (dp * P_DOWN - delta[None, :]) if b.P_BYTES == 2 else p * (dp - delta[None, :])
    mbarrier.wait(shared.q_full.index(stage), (number // b.Q_STAGES) & 1)
    dk_started = start_sum(b, ds, shared.q_block(stage), dk)
    v = as_matrix(shared.v.index(0))
    dp_started = start_dp(b, shared, v, number + 1, number + 1 < count)
    dk = warpgroup_mma_wait(1, [dk_started])
    mbarrier.arrive(shared.empty.index(stage), count=1)
    dp = warpgroup_mma_wait(0, [dp_started])
    return dk, dp


@gluon.jit
def _taken_over(b, shared, number):
    """Returns P^T of a step from the other warpgroup, when it is there."""
    stage = number % b.Q_STAGES
    N: gl.constexpr = b.BLOCK_M
    PAIRS: gl.constexpr = 4 // b.P_BYTES
    buffer = shared.p.index(stage)
    layout: gl.constexpr = wgmma_layout(N)
    like = _in_register_order(gl.zeros([64, N], buffer.dtype, layout), b.P_BYTES)
    mbarrier.wait(shared.p_full.index(stage), (number // b.Q_STAGES) & 1)
    stored = buffer.load(like.type.layout)
    split = stored.reshape([N // (8 * PAIRS), 4, 8, 4, PAIRS, 2, 2])
    p = split.permute((1, 5, 2, 0, 4, 3, 6)).reshape([64, N])
    return gl.convert_layout(p, layout, assert_trivial=True).to(gl.float32)


@gluon.jit
def _in_register_order(p, P_BYTES: gl.constexpr):
    """Returns a WGMMA accumulator (64, N) as (N / 4, 256): groups of 8 columns, or of 16 with
    P_BYTES 2, then warps, then lanes, then the elements of a lane. A thread stores or loads 16
    bytes at once, without bank conflicts."""
    N: gl.constexpr = p.shape[1]
    PAIRS: gl.constexpr = 4 // P_BYTES
    split = p.reshape([4, 2, 8, N // (8 * PAIRS), PAIRS, 4, 2])
    return split.permute((3, 0, 2, 5, 4, 1, 6)).reshape([N // 4, 256])
