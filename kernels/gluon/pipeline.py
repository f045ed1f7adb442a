"""How a producer warp and consumer warpgroups work together: pipelines and a scheduler barrier.

A kernel has one producer warp, which only issues TMA copies, and consumer warpgroups of four warps,
which only compute. They synchronise with mbarriers in shared memory: a `Pipeline` per operand
between the producer and the consumers, and a `SchedulerBarrier` among the consumers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from tunefa.kernels.gluon.api import aggregate, copy_in
from tunefa.kernels.gluon.host import tma_blocks
from tunefa.kernels.gluon.layouts import as_matrix

ROW_LIMIT = gl.constexpr(tma_blocks.ROW_LIMIT)


@aggregate
class Pipeline:
    """A circular buffer of num_stages tiles in shared memory.

    One producer fills a stage by TMA, and all consumers of the pipeline release it.

    A tile has a power of two of columns, and REST more columns in a second piece: so a head
    dimension between two powers of two is not padded to the next one. The producer and each
    consumer count the tiles that went through a stage; the parity of this count is the phase of
    the stage's two barriers.
    TRANSPOSED: the tensor is (batch, heads, head_dim, seqlen), and its tiles are (columns, rows).
    """

    tiles: gl.shared_memory_descriptor
    rests: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    num_stages: gl.constexpr
    REST: gl.constexpr
    TRANSPOSED: gl.constexpr
    COLUMNS: gl.constexpr
    BITS: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, tiles, rests, full, empty, num_stages, REST, TRANSPOSED):
        self.tiles, self.rests, self.full, self.empty = tiles, rests, full, empty
        self.num_stages, self.REST = gl.constexpr(num_stages), gl.constexpr(REST)
        self.TRANSPOSED = gl.constexpr(TRANSPOSED)
        self.COLUMNS = gl.constexpr(tiles.shape[-2 if TRANSPOSED else -1])
        self.BITS = gl.constexpr(tiles.dtype.primitive_bitwidth)

    @gluon.jit
    def load(self, stage, uses, descs, place, row):
        """Producer: waits until the stage is empty, then starts the copy of a tile into it.

        `uses` counts the tiles that went through the stage; `place` is for `tma_coordinates`.
        """
        desc, rest_desc = descs
        tile = self.tiles.index(stage)
        mbarrier.wait(self.empty.index(stage), (uses & 1) ^ 1)
        full = self.full.index(stage)
        if self.REST:
            mbarrier.expect(full, desc.block_type.nbytes + rest_desc.block_type.nbytes)
            rest = self.rests.index(stage)
            COLUMNS: gl.constexpr = desc.block_type.shape[-1]
            copy_in(rest_desc, tma_coordinates(place, row, COLUMNS), full, rest)
        else:
            mbarrier.expect(full, desc.block_type.nbytes)
        if self.TRANSPOSED:
            copy_in(desc, tma_coordinates(place, 0, row), full, tile)
        else:
            copy_in(desc, tma_coordinates(place, row, 0), full, tile)

    @gluon.jit
    def signal_end(self, stage, uses):
        """Producer: marks the stage as full without a copy, as there are no more tiles."""
        mbarrier.wait(self.empty.index(stage), (uses & 1) ^ 1)
        mbarrier.arrive(self.full.index(stage), count=1)

    @gluon.jit
    def wait(self, stage, uses):
        """Consumer: waits until the tile has arrived."""
        mbarrier.wait(self.full.index(stage), uses & 1)

    @gluon.jit
    def release(self, stage):
        """Consumer: lets the producer overwrite the tile."""
        mbarrier.arrive(self.empty.index(stage), count=1)

    @gluon.jit
    def matrix(self, stage):
        """Returns the tile as (rows, columns), without its rest."""
        tile = as_matrix(self.tiles.index(stage))
        if self.TRANSPOSED:
            tile = tile.permute((1, 0))
        return tile

    @gluon.jit
    def rest(self, stage):
        """Returns the rest of the tile as (rows, REST)."""
        return as_matrix(self.rests.index(stage))


@gluon.jit
def tma_coordinates(place, row, column):
    """Returns the coordinates of a row and a column of a head.

    `place` is (batch, head), or (head, begin, length) of a packed sequence: what lies outside of
    its rows is then outside of the tensor (`_packed` in host/tma_blocks.py).
    """
    if len(place) == 2:
        batch, head = place
        coordinates = (batch, head, row, column)
    else:
        head, begin, length = place
        coordinates = (ROW_LIMIT, begin + length, head, ROW_LIMIT - length + row, column)
    return coordinates


@gluon.jit
def new_pipeline(
    descs, REST: gl.constexpr, num_stages: gl.constexpr, CONSUMERS: gl.constexpr,
    TRANSPOSED: gl.constexpr = False,
):  # fmt: skip
    """Returns a pipeline for the tiles of two descriptors, the second one for the rest.

    Tiles are (1, ..., heads, rows, columns); if TRANSPOSED they are (1, 1, columns, rows) and have
    no rest. CONSUMERS warpgroups release each stage.
    """
    desc, rest_desc = descs
    tiles = new_tiles(desc, num_stages)
    rests = tiles
    if REST:
        rests = new_tiles(rest_desc, num_stages)
    full, empty = new_barriers(num_stages, 1), new_barriers(num_stages, CONSUMERS)
    return Pipeline(tiles, rests, full, empty, num_stages, REST, TRANSPOSED)


@gluon.jit
def new_tiles(desc, COUNT: gl.constexpr):
    """Allocates shared memory for COUNT tiles of a descriptor."""
    shape: gl.constexpr = [COUNT] + desc.block_type.shape  # noqa: RUF005 - Gluon has no star
    return gl.allocate_shared_memory(desc.dtype, shape, desc.layout)


@gluon.jit
def new_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Allocates COUNT mbarriers, each of which completes a phase after ARRIVALS arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


@aggregate
class SchedulerBarrier:
    """Ping-pong: the consumer warpgroups issue their matrix products one after the other, so that
    the softmax of one runs during the products of another (FlashAttention-3, arXiv:2407.08608,
    section 3.1). Without PING_PONG it does nothing."""

    barriers: gl.shared_memory_descriptor
    WARPGROUPS: gl.constexpr
    PING_PONG: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, barriers, WARPGROUPS, PING_PONG):
        self.barriers = barriers
        self.WARPGROUPS = gl.constexpr(WARPGROUPS)
        self.PING_PONG = gl.constexpr(PING_PONG)

    @gluon.jit
    def wait(self, block, WG: gl.constexpr):
        """Waits until warpgroup WG may issue the products of a block; warpgroup 0 is the first."""
        if self.PING_PONG:
            mbarrier.wait(self.barriers.index(WG), (block & 1) ^ (1 if WG == 0 else 0))

    @gluon.jit
    def arrive(self, WG: gl.constexpr):
        """Lets the next warpgroup issue its products."""
        if self.PING_PONG:
            mbarrier.arrive(self.barriers.index((WG + 1) % self.WARPGROUPS), count=1)
