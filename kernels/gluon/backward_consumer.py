"""A consumer warpgroup of the attention backward: it computes dK and dV of 64 keys of a tile."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)
from tunefa.kernels.gluon.api import copy_out
from tunefa.kernels.gluon.backward import TAKE_TURNS
from tunefa.kernels.gluon.backward_dq import add_last_dq
from tunefa.kernels.gluon.backward_step import start_s, step
from tunefa.kernels.gluon.layouts import as_matrix, operand_layout, wgmma_layout


@gluon.jit
def consumer(work, WG: gl.constexpr):
    """Computes dK and dV of the tile's keys of warpgroup WG, and its part of dQ.

    `work` is (launch, shared memory, descriptors of dQ's accumulator, of dK and of dV).
    """
    b, shared, outputs = work
    dq_desc, dk_desc, dv_desc = outputs
    tile = b.tile()
    operands = _keys(b, shared, WG)
    zeros = gl.zeros([64, b.COLUMNS], gl.float32, wgmma_layout(b.COLUMNS))
    s = gl.zeros([64, b.BLOCK_M], gl.float32, wgmma_layout(b.BLOCK_M))
    if b.PREFETCH_S:
        k, _ = operands
        s = warpgroup_mma_wait(0, [start_s(b, shared, k, 0, True)])
    # The first unit has a step without a dQ before it.
    sums, number, before = _unit(
        b, shared, dq_desc, operands, (zeros, zeros, s), (tile, 0, 0, 0, 0), True, b.MASKED, WG
    )
    for peeled in gl.static_range(1, b.PEELED):
        place = (tile, 0, peeled, number, before)
        sums, number, before = _unit(b, shared, dq_desc, operands, sums, place, False, True, WG)
    for member in range(0, b.group()):
        # A constexpr that is assigned in a loop is not carried to the next iteration, so this is
        # computed from `member`: the first member's first units are done.
        first = gl.where(member == 0, b.PEELED, 0)
        if b.MASK_LOOP:
            for unit in range(first, tile.masked):
                place = (tile, member, unit, number, before)
                sums, number, before = _unit(
                    b, shared, dq_desc, operands, sums, place, False, True, WG
                )
            first = gl.maximum(first, tile.masked)
        for unit in range(first, tile.units):
            place = (tile, member, unit, number, before)
            sums, number, before = _unit(
                b, shared, dq_desc, operands, sums, place, False, False, WG
            )
    if b.DQ_SPLIT != TAKE_TURNS or WG == b.WARPGROUPS - 1:
        add_last_dq(b, shared, dq_desc, number - 1, before, WG)
    dk, dv, _ = sums
    _write(b, shared, tile, (dk * b.scale, dk_desc), (dv, dv_desc), WG)


@gluon.jit
def _keys(b, shared, WG: gl.constexpr):
    """Returns K and V of warpgroup WG as left operands, when they have arrived."""
    mbarrier.wait(shared.k_full.index(0), 0)
    mbarrier.wait(shared.v_full.index(0), 0)
    k, v = shared.k_rows(WG), shared.v_rows(WG)
    if b.KV_IN_REGISTERS:
        layout: gl.constexpr = operand_layout(b.BLOCK_M, 16)
        operands = (k.load(layout), v.load(layout))
    else:
        operands = (k, v)
    return operands


@gluon.jit
def _unit(
    b, shared, dq_desc, operands, sums, place,
    FIRST: gl.constexpr, MASK: gl.constexpr, WG: gl.constexpr,
):  # fmt: skip
    """Goes through the query blocks of a unit.

    `place` is (tile, member of the group, unit, number of the first step, first row of the step
    before in the scratch tensors). Returns the sums, and the last two for the next unit.
    """
    tile, member, unit, number, before = place
    BLOCKS: gl.constexpr = b.UNIT // b.BLOCK_M
    count = b.group() * tile.units * BLOCKS
    row = b.row(tile, unit)
    key = tile.key + 64 * WG
    for block in gl.static_range(BLOCKS):
        here = (number, count, row + block * b.BLOCK_M, key, before)
        sums = step(
            b, shared, dq_desc, operands, sums, here, FIRST and block == 0,
            _adds_dq(b.DQ_SPLIT, BLOCKS, block, FIRST, WG), MASK, WG,
        )  # fmt: skip
        before = b.rows_before(tile, member) + row + block * b.BLOCK_M
        number += 1
    return sums, number, before


@gluon.constexpr_function
def _adds_dq(dq_split, blocks, block, first, wg):
    """Returns whether warpgroup `wg` adds, in a query block of a unit, dQ of the block before."""
    mine = dq_split != TAKE_TURNS or (block - 1) % blocks == wg
    return mine and not (first and block == 0)


@gluon.jit
def _write(b, shared, tile, dk, dv, WG: gl.constexpr):
    """Sends dV, then dK, to memory by TMA, which leaves out the rows beyond seqlen_k.

    Both leave through the buffer of the warpgroup's V, which no other warpgroup reads.
    """
    dk, dk_desc = dk
    dv, dv_desc = dv
    buffer = shared.v.index(WG)
    coordinates = (tile.batch, tile.head_kv, tile.key + 64 * WG, 0)
    as_matrix(buffer).store(dv.to(dv_desc.dtype))
    fence_async_shared()
    copy_out(dv_desc, coordinates, buffer)
    tma.store_wait(0)
    as_matrix(buffer).store(dk.to(dk_desc.dtype))
    fence_async_shared()
    copy_out(dk_desc, coordinates, buffer)
    tma.store_wait(0)
