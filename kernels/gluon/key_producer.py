"""The producer warp of the dKV pass: it copies K, V, Q and dO to shared memory by TMA."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_wait
from tunefa.kernels.gluon.api import copy_in
from tunefa.kernels.gluon.persistent import first_tile


@gluon.jit
def producer(loads):
    """Loads all tiles of this CTA.

    `loads` is (launch, shared memory, descriptors of q, k, v, dO, lse and delta, table of tiles).
    """
    b, _, _, table = loads
    if b.PERSISTENT:
        steps = 0
        first, count, number = first_tile(table)
        for done in range(0, count):
            following = gl.load(table + first + done + 1)
            tile = b.tile(number)
            _load_tile(loads, tile, done, steps)
            steps += b.group() * tile.blocks
            number = following
    else:
        _load_tile(loads, b.tile(gl.program_id(0)), 0, 0)


@gluon.jit
def _load_tile(loads, tile, done, steps):
    """Loads K, then Q of the first step, then V, then all else: in the order of their use.

    `done` tiles and `steps` steps came before the tile.
    """
    b, shared, descs, _ = loads
    _, k_desc, v_desc, _, _, _ = descs
    stage = done % b.KV_STAGES
    if b.PERSISTENT:
        mbarrier.wait(shared.kv_empty.index(stage), ((done // b.KV_STAGES) & 1) ^ 1)
    _load_keys(b, tile, k_desc, shared.k, shared.k_full, stage)
    if b.DEPENDENT_LAUNCH and done == 0:
        gdc_wait()  # until the dQ pass, which writes lse_log2 and delta, has ended
    for member in range(0, b.group()):
        for block in range(0, tile.blocks):
            row = tile.row + block * b.BLOCK_M
            step = member * tile.blocks + block
            _load_queries(b, shared, descs, tile, member, row, steps + step)
            if step == 0:
                _load_keys(b, tile, v_desc, shared.v, shared.v_full, stage)
            _load_gradients(b, shared, descs, tile, member, row, steps + step)


@gluon.jit
def _load_keys(b, tile, desc, buffer, full, stage):
    """Starts the copy of the tile's rows of K or of V, zeros beyond seqlen_k."""
    mbarrier.expect(full.index(stage), b.PIECES * desc.block_type.nbytes)
    for piece in gl.static_range(b.PIECES):
        coordinates = (tile.batch, tile.head_kv, tile.key + 64 * piece, 0)
        copy_in(desc, coordinates, full.index(stage), buffer.index(stage * b.PIECES + piece))


@gluon.jit
def _load_queries(b, shared, descs, tile, member, row, step):
    """Waits until the stage is empty, then starts the copy of a block of Q and its lse."""
    q_desc, _, _, _, lse_desc, _ = descs
    stage = step % b.Q_STAGES
    full = shared.q_full.index(stage)
    mbarrier.wait(shared.empty.index(stage), ((step // b.Q_STAGES) & 1) ^ 1)
    mbarrier.expect(full, q_desc.block_type.nbytes + lse_desc.block_type.nbytes)
    head = tile.head_kv * b.group() + member
    copy_in(q_desc, (tile.batch, head, row, 0), full, shared.q.index(stage))
    copy_in(lse_desc, (b.rows_before(tile, member) + row,), full, shared.lse.index(stage))


@gluon.jit
def _load_gradients(b, shared, descs, tile, member, row, step):
    """Starts the copy of a block of dO and its delta into a stage that is empty."""
    _, _, _, do_desc, _, delta_desc = descs
    stage = step % b.Q_STAGES
    full = shared.do_full.index(stage)
    mbarrier.expect(full, do_desc.block_type.nbytes + delta_desc.block_type.nbytes)
    head = tile.head_kv * b.group() + member
    copy_in(do_desc, (tile.batch, head, row, 0), full, shared.do.index(stage))
    copy_in(delta_desc, (b.rows_before(tile, member) + row,), full, shared.delta.index(stage))
