"""dQ of the attention backward: CTAs add their parts to one accumulator in fp32, by TMA."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from tunefa.kernels.gluon.backward import SPLIT_COLUMNS, SPLIT_ROWS, TAKE_TURNS
from tunefa.kernels.gluon.layouts import wgmma_layout
from tunefa.kernels.gluon.tma_reduce import add_out


@gluon.jit
def start_dq(b, shared, number, WG: gl.constexpr):
    """Starts dQ = dS @ K of a step over all keys of the CTA: WARPGROUPS products.

    Warpgroup WG computes the columns, or the rows, that DQ_SPLIT gives it, or all of dQ.
    """
    buffer = number % b.DS_STAGES
    if b.DS_STAGES == 2:  # with three buffers it was awaited before the next dS was stored
        mbarrier.wait(shared.ds_full.index(buffer), (number // b.DS_STAGES) & 1)
    PARTS: gl.constexpr = b.WARPGROUPS if b.DQ_SPLIT == SPLIT_COLUMNS else 1
    COLUMNS: gl.constexpr = b.COLUMNS // PARTS
    dq = gl.zeros([64, COLUMNS], gl.float32, wgmma_layout(COLUMNS))
    for wg in gl.static_range(b.WARPGROUPS):
        ds, k = shared.ds.index(buffer * b.WARPGROUPS + wg), shared.k_rows(wg)
        if b.DQ_SPLIT == SPLIT_ROWS:
            ds = ds.slice(WG * 64, 64, dim=1)
        if b.DQ_SPLIT == SPLIT_COLUMNS:
            k = k.slice(WG * COLUMNS, COLUMNS, dim=1)
        if wg == 0:
            dq = warpgroup_mma(ds.permute((1, 0)), k, dq, use_acc=False, is_async=True)
        else:
            dq = warpgroup_mma(ds.permute((1, 0)), k, dq, is_async=True)
    return dq


@gluon.jit
def add_dq(b, shared, dq_desc, dq, number, row, WG: gl.constexpr):
    """Starts to add dQ of a step to the accumulator from row `row` of all heads on.

    The accumulator has the elements of 64 rows in the order of the registers of a WGMMA accumulator
    (64, N): four of a lane, then the lanes of a pair of warps, then pairs of warps, then groups of
    eight columns. So a thread stores 16 bytes at once without bank conflicts, and TMA adds one
    contiguous block. `write_dq` (triton/backward_rows.py) restores the rows.
    """
    N: gl.constexpr = dq.shape[1]
    in_registers = dq.reshape([4, 2, 8, N // 8, 4, 2]).permute((3, 0, 2, 4, 1, 5))
    buffer = number
    if b.DQ_SPLIT == TAKE_TURNS:
        buffer = number // b.WARPGROUPS
    tile = shared.dq.index(WG + b.WARPGROUPS * (buffer % b.DQ_STAGES))
    tma.store_wait(b.DQ_STAGES - 1)
    tile.store(in_registers.reshape([N // 4, 256]))
    fence_async_shared()
    place = (row * (b.COLUMNS // 64)) >> 2  # rows come in multiples of 64
    if b.DQ_SPLIT != TAKE_TURNS:
        place += WG * (N // 4)
    add_out(dq_desc, (place, 0), tile)


@gluon.jit
def add_last_dq(b, shared, dq_desc, number, row, WG: gl.constexpr):
    """Computes and adds dQ of the last step of a tile."""
    buffer = number % b.DS_STAGES
    if b.DS_STAGES > 2:  # `start_dq` itself waits otherwise
        mbarrier.wait(shared.ds_full.index(buffer), (number // b.DS_STAGES) & 1)
    dq = warpgroup_mma_wait(0, [start_dq(b, shared, number, WG)])
    add_dq(b, shared, dq_desc, dq, number, row, WG)
