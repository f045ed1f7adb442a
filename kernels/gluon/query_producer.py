"""The producer warp of the pass that computes dQ: it copies Q, dO, K and V by TMA."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.language.extra.cuda import gdc_launch_dependents
from tunefa.kernels.gluon.api import copy_in
from tunefa.kernels.gluon.persistent import first_tile


@gluon.jit
def producer(loads):
    """Loads all tiles of this CTA. Then CTAs of the next pass may start where there is room.

    `loads` is (launch, shared memory, descriptors of q, k, v and dO, table of tiles).
    """
    b, _, _, table = loads
    if b.PERSISTENT:
        blocks = 0
        first, count, number = first_tile(table)
        for done in range(0, count):
            following = gl.load(table + first + done + 1)
            tile = b.tile(number)
            _load_tile(loads, tile, done, blocks)
            blocks += tile.blocks
            number = following
    else:
        _load_tile(loads, b.tile(gl.program_id(0)), 0, 0)
    if b.DEPENDENT_LAUNCH:
        gdc_launch_dependents()


@gluon.jit
def _load_tile(loads, tile, done, blocks):
    """Loads Q and dO of a tile, and K and V of its blocks, the last block first.

    `done` tiles and `blocks` blocks came before. K of the first block comes first, as it need not
    wait for the end of the tile before.
    """
    b, shared, descs, _ = loads
    q_desc, k_desc, v_desc, do_desc = descs
    for i in range(0, tile.blocks):
        number = blocks + i
        place = (tile.batch, tile.head_kv, (tile.first + tile.blocks - 1 - i) * b.BLOCK_N, 0)
        _load_block(k_desc, place, shared.k, shared.k_full, shared.k_empty, number, b.K_STAGES)
        if i == 0:
            _load_rows(b, shared, tile, (q_desc, do_desc), done)
        _load_block(v_desc, place, shared.v, shared.v_full, shared.v_empty, number, b.V_STAGES)


@gluon.jit
def _load_rows(b, shared, tile, descs, done):
    """Starts the copies of all warpgroups' rows of Q and of dO, zeros beyond seqlen_q."""
    q_desc, do_desc = descs
    stage = done % b.Q_STAGES * b.WARPGROUPS
    for wg in gl.static_range(b.WARPGROUPS):
        coordinates = (tile.batch, tile.head, tile.row + 64 * wg, 0)
        q_full, do_full = shared.q_full.index(stage + wg), shared.do_full.index(stage + wg)
        if b.PERSISTENT:
            mbarrier.wait(shared.q_empty.index(stage + wg), ((done // b.Q_STAGES) & 1) ^ 1)
        mbarrier.expect(q_full, q_desc.block_type.nbytes)
        copy_in(q_desc, coordinates, q_full, shared.q.index(stage + wg))
        mbarrier.expect(do_full, do_desc.block_type.nbytes)
        copy_in(do_desc, coordinates, do_full, shared.do.index(stage + wg))


@gluon.jit
def _load_block(desc, place, buffer, full, empty, number, num_stages: gl.constexpr):
    """Waits until a stage is empty, then starts the copy of a block of K or of V into it."""
    stage = number % num_stages
    mbarrier.wait(empty.index(stage), ((number // num_stages) & 1) ^ 1)
    mbarrier.expect(full.index(stage), desc.block_type.nbytes)
    copy_in(desc, place, full.index(stage), buffer.index(stage))
