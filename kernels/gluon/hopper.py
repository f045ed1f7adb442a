"""Device functions that Gluon kernels for Hopper share.

A kernel is one producer warp, which only issues TMA copies, and consumer warpgroups of four warps,
which only compute. They meet at mbarriers in shared memory: a `Ring` of tiles per operand, and
`Turns` among the consumers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from tunefa.kernels.gluon.api import aggregate, copy_in
from tunefa.kernels.gluon.tma_blocks import ROW_LIMIT

WARPGROUP_ROWS = 64
"""Rows of one WGMMA; a consumer warpgroup owns as many."""


@gluon.constexpr_function
def wgmma_layout(columns):
    """Registers of a WGMMA accumulator of 64 x columns (PTX ISA, wgmma.mma_async)."""
    shape = [16, columns, 16]
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=shape)


@gluon.constexpr_function
def operand_layout(columns, bits):
    """Registers of a left WGMMA operand that goes into an accumulator of 64 x columns."""
    return gl.DotOperandLayout(operand_index=0, parent=wgmma_layout(columns), k_width=32 // bits)


@gluon.constexpr_function
def lane_sum_layout():
    """64 rows x 4: what is left of a WGMMA accumulator when each lane has summed its columns."""
    lanes = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([[8, 0]], lanes, [[16, 0], [32, 0]], [], [64, 4])


@gluon.constexpr_function
def row_layout(columns):
    """One value per row of a WGMMA accumulator."""
    return gl.SliceLayout(1, wgmma_layout(columns))


# ------------------------------------------------------------------------------------------ rings


@aggregate
class Ring:
    """SLOTS tiles in shared memory that one producer fills by TMA and READERS consumers free.

    A tile has a power of two of columns, and REST more in a second piece: head dimensions between
    two powers of two cost little more than they must. The producer and each consumer count the
    tiles that went through a slot; the parity of the count is the phase its barriers are at.
    """

    tiles: gl.shared_memory_descriptor
    rests: gl.shared_memory_descriptor
    filled: gl.shared_memory_descriptor
    freed: gl.shared_memory_descriptor
    SLOTS: gl.constexpr
    REST: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, tiles, rests, filled, freed, SLOTS, REST):
        self.tiles, self.rests, self.filled, self.freed = tiles, rests, filled, freed
        self.SLOTS, self.REST = gl.constexpr(SLOTS), gl.constexpr(REST)

    @gluon.jit
    def fill(self, slot, uses, descs, place, row):
        """Producer: waits until the slot is free, then starts the copy of a tile into it.

        `place` is what `at` takes.
        """
        desc, rest_desc = descs
        tile = self.tiles.index(slot)
        mbarrier.wait(self.freed.index(slot), (uses & 1) ^ 1)
        filled = self.filled.index(slot)
        if self.REST:
            mbarrier.expect(filled, desc.block_type.nbytes + rest_desc.block_type.nbytes)
            rest = self.rests.index(slot)
            COLUMNS: gl.constexpr = desc.block_type.shape[-1]
            copy_in(rest_desc, at(place, row, COLUMNS), filled, rest)
        else:
            mbarrier.expect(filled, desc.block_type.nbytes)
        copy_in(desc, at(place, row, 0), filled, tile)

    @gluon.jit
    def wait(self, slot, uses):
        """Consumer: waits until the tile is there."""
        mbarrier.wait(self.filled.index(slot), uses & 1)

    @gluon.jit
    def free(self, slot):
        """Consumer: the tile has been read."""
        mbarrier.arrive(self.freed.index(slot), count=1)

    @gluon.jit
    def matrix(self, slot):
        """The tile as (rows, columns), without its rest."""
        return as_matrix(self.tiles.index(slot))

    @gluon.jit
    def rest(self, slot):
        """The rest of the tile as (rows, REST)."""
        return as_matrix(self.rests.index(slot))


@gluon.jit
def at(place, row, column):
    """Where TMA finds a row and a column of a head.

    `place` is (batch, head), or (head, begin, length) of a sequence among packed ones: then what
    lies outside of these rows is outside of the tensor (`_packed` in tma_blocks.py).
    """
    if len(place) == 2:
        batch, head = place
        coordinates = (batch, head, row, column)
    else:
        head, begin, length = place
        coordinates = (ROW_LIMIT, begin + length, head, ROW_LIMIT - length + row, column)
    return coordinates


@gluon.jit
def as_matrix(tile):
    """(1, ..., rows, columns) in shared memory as (rows, columns)."""
    return tile.reshape([tile.shape[-2], tile.shape[-1]])


@gluon.jit
def new_ring(descs, REST: gl.constexpr, SLOTS: gl.constexpr, READERS: gl.constexpr):
    """A ring for the tiles of two descriptors (1, ..., rows, columns), the second for the rest."""
    desc, rest_desc = descs
    tiles = new_tiles(desc, SLOTS)
    rests = tiles
    if REST:
        rests = new_tiles(rest_desc, SLOTS)
    return Ring(tiles, rests, new_barriers(SLOTS, 1), new_barriers(SLOTS, READERS), SLOTS, REST)


@gluon.jit
def new_tiles(desc, COUNT: gl.constexpr):
    """Shared memory for COUNT tiles of a descriptor."""
    shape: gl.constexpr = [COUNT] + desc.block_type.shape  # noqa: RUF005 - Gluon has no star
    return gl.allocate_shared_memory(desc.dtype, shape, desc.layout)


@gluon.jit
def new_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """COUNT mbarriers, each of which completes a phase after ARRIVALS arrivals."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


# ------------------------------------------------------------------------------------------ turns


@aggregate
class Turns:
    """Ping-pong: consumers issue their matrix products one after the other, so that one's softmax
    runs under another's products (FlashAttention-3, arXiv:2407.08608, section 3.1)."""

    barriers: gl.shared_memory_descriptor
    PLAYERS: gl.constexpr
    ON: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, barriers, PLAYERS, ON):
        self.barriers = barriers
        self.PLAYERS = gl.constexpr(PLAYERS)
        self.ON = gl.constexpr(ON)

    @gluon.jit
    def wait(self, turn, ME: gl.constexpr):
        """Waits for my turn number `turn`; player 0 has the first."""
        if self.ON:
            mbarrier.wait(self.barriers.index(ME), (turn & 1) ^ (1 if ME == 0 else 0))

    @gluon.jit
    def give(self, ME: gl.constexpr):
        """Ends my turn."""
        if self.ON:
            mbarrier.arrive(self.barriers.index((ME + 1) % self.PLAYERS), count=1)


# ---------------------------------------------------------------------------------------- softmax


@gluon.jit
def no_row_sum(N: gl.constexpr, LANE_SUM: gl.constexpr):
    """Row sums before the first block of N columns."""
    if LANE_SUM:
        row_sum = gl.full([64, 4], 0.0, gl.float32, lane_sum_layout())
    else:
        row_sum = gl.full([64], 0.0, gl.float32, row_layout(N))
    return row_sum


@gluon.jit
def whole_row_sum(row_sum, N: gl.constexpr, LANE_SUM: gl.constexpr):
    """Row sums after the last block, one per row."""
    if LANE_SUM:
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), row_layout(N))
    return row_sum


@gluon.jit
def online_softmax(s, row_max, row_sum, scale_log2, MASKED: gl.constexpr, LANE_SUM: gl.constexpr):
    """One block of scores: (p, row_max, row_sum, decay), maxima in units of log2.

    FlashAttention-2, arXiv:2307.08691, algorithm 1, lines 8 and 9. LANE_SUM: a row's sum stays
    spread over its four lanes until `whole_row_sum`, which saves two shuffles per block and row.
    """
    N: gl.constexpr = s.shape[1]
    new_max = gl.maximum(row_max, gl.max(s, 1) * scale_log2)
    shift = new_max
    if MASKED:  # a row that has seen no key yet: -inf - -inf would be NaN
        shift = gl.where(new_max == -float("inf"), 0.0, new_max)
    p = gl.exp2(s * scale_log2 - shift[:, None])
    decay = gl.exp2(row_max - shift)
    if LANE_SUM:
        lanes: gl.constexpr = lane_sum_layout()
        pairs = gl.sum(gl.sum(p.reshape([64, N // 8, 4, 2]), 3), 1)
        rows = gl.convert_layout(decay, gl.SliceLayout(1, lanes), assert_trivial=True)
        row_sum = row_sum * rows[:, None] + gl.convert_layout(pairs, lanes, assert_trivial=True)
    else:
        row_sum = row_sum * decay + gl.sum(p, 1)
    return p, new_max, row_sum, decay
