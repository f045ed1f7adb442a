"""A consumer warpgroup of the dKV pass that computes dK and dV of its own 64 keys of a tile."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait
from tunefa.kernels.gluon.gradient_passes import unknown_zero
from tunefa.kernels.gluon.key_step import start_s, start_write, step
from tunefa.kernels.gluon.layouts import as_matrix, operand_layout, wgmma_layout
from tunefa.kernels.gluon.persistent import first_tile


@gluon.jit
def consumer(work, WG: gl.constexpr):
    """Computes dK and dV of the keys of warpgroup WG in the tiles of this CTA.

    `work` is (launch, shared memory, descriptors of dK and of dV, table of tiles).
    """
    b, shared, outputs, table = work
    if b.PERSISTENT:
        steps = 0
        first, count, _ = first_tile(table)
        for done in range(0, count):
            number = gl.load(table + first + done)
            steps = _tile(b, shared, outputs, number, done, steps, WG)
    else:
        _tile(b, shared, outputs, gl.program_id(0), 0, 0, WG)


@gluon.jit
def _tile(b, shared, outputs, number, done, steps, WG: gl.constexpr):
    """Computes dK and dV of tile `number`; `done` tiles and `steps` steps came before it. Returns
    how many steps there were with it."""
    dk_desc, dv_desc = outputs
    stage = done % b.KV_STAGES
    piece = stage * b.PIECES + WG
    operands = _keys(b, shared, stage, (done // b.KV_STAGES) & 1, piece)
    dk = gl.zeros([64, b.COLUMNS], gl.float32, wgmma_layout(b.COLUMNS))
    dv = gl.zeros([64, b.COLUMNS], gl.float32, wgmma_layout(b.COLUMNS))
    s = gl.zeros([64, b.BLOCK_M], gl.float32, wgmma_layout(b.BLOCK_M))
    if b.PREFETCH_S:
        k, _ = operands
        s = warpgroup_mma_wait(0, [start_s(b, shared, k, steps, True)])
    tile = b.tile(number)  # now, so that its number is loaded during the first product
    sums = (dk, dv, s)
    key = tile.key + 64 * WG
    end = steps + b.group() * tile.blocks
    for member in range(0, b.group()):
        before = steps + member * tile.blocks
        if b.MASKED:
            apart = _apart(b, shared, operands, piece + unknown_zero(b.seqlen_q))
            for block in range(0, tile.masked):
                place = (before + block, end, tile.row + block * b.BLOCK_M, key)
                sums = step(b, shared, apart, sums, place, True)
        for block in range(tile.masked, tile.whole):
            place = (before + block, end, tile.row + block * b.BLOCK_M, key)
            sums = step(b, shared, operands, sums, place, False)
        if b.WINDOWED:
            apart = _apart(b, shared, operands, piece + unknown_zero(b.seqlen_k))
            for block in range(tile.whole, tile.blocks):
                place = (before + block, end, tile.row + block * b.BLOCK_M, key)
                sums = step(b, shared, apart, sums, place, True)
    dk, dv, _ = sums
    start_write(dv_desc, tile, key, dv, shared.v.index(piece))
    start_write(dk_desc, tile, key, dk * b.scale, shared.k.index(piece))
    tma.store_wait(0)
    if b.PERSISTENT:
        mbarrier.arrive(shared.kv_empty.index(stage), count=1)
    return end


@gluon.jit
def _keys(b, shared, stage, phase, piece):
    """Returns 64 rows of K and of V as left operands, when they have arrived."""
    mbarrier.wait(shared.k_full.index(stage), phase)
    k, v = as_matrix(shared.k.index(piece)), as_matrix(shared.v.index(piece))
    if b.KV_IN_REGISTERS:
        layout: gl.constexpr = operand_layout(b.BLOCK_M, 16)
        k = k.load(layout)
        mbarrier.wait(shared.v_full.index(stage), phase)
        v = v.load(layout)
    else:
        mbarrier.wait(shared.v_full.index(stage), phase)
    return k, v


@gluon.jit
def _apart(b, shared, operands, piece):
    """Returns K and V for a loop of its own: those that are in shared memory, at `piece`, if their
    first product is not before the loops; see `unknown_zero`."""
    k, v = operands
    if b.KV_IN_REGISTERS == 0:
        v = as_matrix(shared.v.index(piece))
        if b.PREFETCH_S == 0:
            k = as_matrix(shared.k.index(piece))
    return k, v
