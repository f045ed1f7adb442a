"""A consumer warpgroup of the dKV pass that computes dK and dV of its own 64 keys."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait
from tunefa.kernels.gluon.key_step import start_s, start_write, step
from tunefa.kernels.gluon.layouts import as_matrix, operand_layout, wgmma_layout


@gluon.jit
def consumer(work, WG: gl.constexpr):
    """Computes dK and dV of the tile's keys of warpgroup WG.

    `work` is (launch, shared memory, descriptors of dK and of dV).
    """
    b, shared, outputs = work
    dk_desc, dv_desc = outputs
    tile = b.tile()
    k, v = _keys(b, shared, WG)
    dk = gl.zeros([64, b.COLUMNS], gl.float32, wgmma_layout(b.COLUMNS))
    dv = gl.zeros([64, b.COLUMNS], gl.float32, wgmma_layout(b.COLUMNS))
    s = gl.zeros([64, b.BLOCK_M], gl.float32, wgmma_layout(b.BLOCK_M))
    if b.PREFETCH_S:
        s = warpgroup_mma_wait(0, [start_s(b, shared, k, 0, True)])
    sums = (dk, dv, s)
    key = tile.key + 64 * WG
    count = b.group() * tile.blocks
    for member in range(0, b.group()):
        before = member * tile.blocks
        if b.MASKED:
            for block in range(0, tile.masked):
                place = (before + block, count, tile.row + block * b.BLOCK_M, key)
                sums = step(b, shared, (k, v), sums, place, True)
        for block in range(tile.masked, tile.blocks):
            place = (before + block, count, tile.row + block * b.BLOCK_M, key)
            sums = step(b, shared, (k, v), sums, place, False)
    dk, dv, _ = sums
    start_write(dv_desc, tile, WG, dv, shared.v.index(WG))
    start_write(dk_desc, tile, WG, dk * b.scale, shared.k.index(WG))
    tma.store_wait(0)


@gluon.jit
def _keys(b, shared, WG: gl.constexpr):
    """Returns K and V of warpgroup WG as left operands, when they have arrived."""
    mbarrier.wait(shared.k_full.index(0), 0)
    k, v = as_matrix(shared.k.index(WG)), as_matrix(shared.v.index(WG))
    if b.KV_IN_REGISTERS:
        layout: gl.constexpr = operand_layout(b.BLOCK_M, 16)
        k = k.load(layout)
        mbarrier.wait(shared.v_full.index(0), 0)
        v = v.load(layout)
    else:
        mbarrier.wait(shared.v_full.index(0), 0)
    return k, v
