"""One step of a consumer warpgroup of the attention backward: 64 keys and one query block."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tunefa.kernels.gluon.backward_dq import add_dq, start_dq
from tunefa.kernels.gluon.layouts import operand_layout, wgmma_layout


@gluon.jit
def step(
    b, shared, dq_desc, operands, sums, place,
    FIRST: gl.constexpr, ADD_DQ: gl.constexpr, MASK: gl.constexpr, WG: gl.constexpr,
):  # fmt: skip
    """Adds a query block to dK and dV, and stores its dS. Returns dK, dV and the next step's S^T.

    `operands` are K and V of the warpgroup's keys. `sums` are dK, dV and, with PREFETCH_S, this
    step's S^T. `place` is (number of this step, number of steps, first row of the block, first key
    of the warpgroup, first row of the step before in the scratch tensors). ADD_DQ: dQ of the step
    before is added, which is one step late, so that the dS of every warpgroup is there already.
    FIRST: there is no step before.
    """
    k, v = operands
    dk, dv, s = sums
    number, count, row, key, before = place
    stage = number % b.Q_STAGES
    q, do = shared.q_block(stage), shared.do_block(stage)
    p, dp_started = _probabilities(b, shared, k, v, s, number, row, key, MASK)
    p_operand = gl.convert_layout(p.to(q.dtype), operand_layout(b.COLUMNS, 16))
    dv_started = warpgroup_mma(p_operand, do, dv, is_async=True)
    ds = _score_gradients(b, shared, p, dp_started, stage).to(q.dtype)
    _store_ds(b, shared, ds, number, FIRST, WG)
    if ADD_DQ:
        dq_started = start_dq(b, shared, number - 1, WG)
    ds_operand = gl.convert_layout(ds, operand_layout(b.COLUMNS, 16))
    dk_started = warpgroup_mma(ds_operand, q, dk, is_async=True)
    if b.PREFETCH_S == 1:
        s_started = start_s(b, shared, k, number + 1, number + 1 < count)
    AFTER_DK: gl.constexpr = 1 if b.PREFETCH_S == 1 else 0
    if ADD_DQ:
        DQ_PRODUCTS: gl.constexpr = b.WARPGROUPS
        dv = warpgroup_mma_wait(DQ_PRODUCTS + 1 + AFTER_DK, [dv_started])
        dq = warpgroup_mma_wait(1 + AFTER_DK, [dq_started])
        add_dq(b, shared, dq_desc, dq, number - 1, before, WG)
    else:
        dv = warpgroup_mma_wait(1 + AFTER_DK, [dv_started])
    if b.PREFETCH_S == 2:
        s_started = start_s(b, shared, k, number + 1, number + 1 < count)
    dk = warpgroup_mma_wait(1 if b.PREFETCH_S else 0, [dk_started])
    mbarrier.arrive(shared.q_empty.index(stage), count=1)
    if b.PREFETCH_S:
        s = warpgroup_mma_wait(0, [s_started])
    return dk, dv, s


@gluon.jit
def start_s(b, shared, k, number, exists):
    """Starts S^T = K @ Q^T of a step when its Q has arrived. A step that does not exist is not
    waited for: its S^T is that of an old block, and is not used."""
    stage = number % b.Q_STAGES
    mbarrier.wait(shared.q_full.index(stage), (number // b.Q_STAGES) & 1, pred=exists)
    return _start_transposed(b, k, shared.q_block(stage))


@gluon.jit
def _start_transposed(b, a, rows):
    """Starts a @ rows^T, (64 keys, BLOCK_M query rows)."""
    zeros = gl.zeros([64, b.BLOCK_M], gl.float32, wgmma_layout(b.BLOCK_M))
    return warpgroup_mma(a, rows.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _probabilities(b, shared, k, v, s, number, row, key, MASK: gl.constexpr):
    """Returns P^T of a step, and dP^T = V @ dO^T, which is still being multiplied."""
    stage = number % b.Q_STAGES
    if b.PREFETCH_S == 0:
        s_started = start_s(b, shared, k, number, True)
    mbarrier.wait(shared.do_full.index(stage), (number // b.Q_STAGES) & 1)
    dp_started = _start_transposed(b, v, shared.do_block(stage))
    rows: gl.constexpr = gl.SliceLayout(0, wgmma_layout(b.BLOCK_M))
    if b.DEFER_ROW_LOADS < 2:
        lse = shared.lse.index(stage).load(rows)
    if b.PREFETCH_S == 0:
        s = warpgroup_mma_wait(1, [s_started])
    if b.DEFER_ROW_LOADS == 2:
        lse = shared.lse.index(stage).load(rows)
    p = gl.exp2(s * b.scale_log2 - lse[None, :])
    if MASK:
        p = b.masked(p, row, key)
    return p, dp_started


@gluon.jit
def _score_gradients(b, shared, p, dp_started, stage):
    """Returns dS^T = P^T * (dP^T - delta), when dP^T is finished and dV goes on."""
    rows: gl.constexpr = gl.SliceLayout(0, wgmma_layout(b.BLOCK_M))
    if b.DEFER_ROW_LOADS == 0:
        delta = shared.delta.index(stage).load(rows)
    dp = warpgroup_mma_wait(1, [dp_started])
    if b.DEFER_ROW_LOADS > 0:
        delta = shared.delta.index(stage).load(rows)
    return p * (dp - delta[None, :])


@gluon.jit
def _store_ds(b, shared, ds, number, FIRST: gl.constexpr, WG: gl.constexpr):
    """Stores dS^T of a step, from which all warpgroups compute dQ.

    A buffer needs no barrier that says it is empty. With three buffers, the last reader of this one
    is the dQ of step `number - 3`, which its warpgroup finishes in step `number - 2`. A warpgroup
    that has stored dS of step `number - 1` has left that step. With two buffers, the last reader is
    the dQ of step `number - 2`, which is finished in step `number - 1`: its end is awaited.
    """
    before = number - 1
    if not FIRST:
        if b.DS_STAGES == 2:
            stage, phase = before % b.Q_STAGES, (before // b.Q_STAGES) & 1
            mbarrier.wait(shared.q_empty.index(stage), phase)
        else:  # also what dQ of the step before waits for
            stage, phase = before % b.DS_STAGES, (before // b.DS_STAGES) & 1
            mbarrier.wait(shared.ds_full.index(stage), phase)
    stage = number % b.DS_STAGES
    shared.ds.index(stage * b.WARPGROUPS + WG).store(ds)
    fence_async_shared()
    mbarrier.arrive(shared.ds_full.index(stage), count=1)
