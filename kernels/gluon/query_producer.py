"""The producer warp of the pass that computes dQ: it copies Q, dO, K and V by TMA."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from tunefa.kernels.gluon.api import copy_in


@gluon.jit
def producer(loads):
    """Loads Q and dO of the tile, and K and V of its blocks, the last first: in the order of their
    use.

    `loads` is (launch, shared memory, descriptors of q, k, v and dO).
    """
    b, shared, descs = loads
    q_desc, k_desc, v_desc, do_desc = descs
    tile = b.tile()
    for number in range(0, tile.blocks):
        place = (tile.batch, tile.head_kv, (tile.blocks - 1 - number) * b.BLOCK_N, 0)
        if number == 0:
            _load_rows(b, tile, q_desc, shared.q, shared.q_full)
        _load_block(k_desc, place, shared.k, shared.k_full, shared.k_empty, number, b.K_STAGES)
        if number == 0:
            _load_rows(b, tile, do_desc, shared.do, shared.do_full)
        _load_block(v_desc, place, shared.v, shared.v_full, shared.v_empty, number, b.V_STAGES)


@gluon.jit
def _load_rows(b, tile, desc, buffer, full):
    """Starts the copies of all warpgroups' rows of Q or of dO, zeros beyond seqlen_q."""
    for wg in gl.static_range(b.WARPGROUPS):
        mbarrier.expect(full.index(wg), desc.block_type.nbytes)
        coordinates = (tile.batch, tile.head, tile.row + 64 * wg, 0)
        copy_in(desc, coordinates, full.index(wg), buffer.index(wg))


@gluon.jit
def _load_block(desc, place, buffer, full, empty, number, STAGES: gl.constexpr):
    """Waits until a stage is empty, then starts the copy of a block of K or of V into it."""
    stage = number % STAGES
    mbarrier.wait(empty.index(stage), ((number // STAGES) & 1) ^ 1)
    mbarrier.expect(full.index(stage), desc.block_type.nbytes)
    copy_in(desc, place, full.index(stage), buffer.index(stage))
