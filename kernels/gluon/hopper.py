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


@gluon.constexpr_function
def wgmma_layout(columns, bits=16):
    """Registers of a WGMMA accumulator of 64 x columns (PTX ISA, wgmma.mma_async).

    They are the same for operands of any number of `bits`, but the compiler tells them apart.
    """
    shape = [16, columns, 256 // bits]
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=shape)


@gluon.constexpr_function
def operand_layout(columns, bits):
    """Registers of a left WGMMA operand that goes into an accumulator of 64 x columns."""
    parent = wgmma_layout(columns, bits)
    return gl.DotOperandLayout(operand_index=0, parent=parent, k_width=32 // bits)


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
    TRANSPOSED: of a tensor (batch, heads, head_dim, seqlen), whose tiles are (columns, rows).
    """

    tiles: gl.shared_memory_descriptor
    rests: gl.shared_memory_descriptor
    filled: gl.shared_memory_descriptor
    freed: gl.shared_memory_descriptor
    SLOTS: gl.constexpr
    REST: gl.constexpr
    TRANSPOSED: gl.constexpr
    COLUMNS: gl.constexpr
    BITS: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, tiles, rests, filled, freed, SLOTS, REST, TRANSPOSED):
        self.tiles, self.rests, self.filled, self.freed = tiles, rests, filled, freed
        self.SLOTS, self.REST = gl.constexpr(SLOTS), gl.constexpr(REST)
        self.TRANSPOSED = gl.constexpr(TRANSPOSED)
        self.COLUMNS = gl.constexpr(tiles.shape[-2 if TRANSPOSED else -1])
        self.BITS = gl.constexpr(tiles.dtype.primitive_bitwidth)

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
        if self.TRANSPOSED:
            copy_in(desc, at(place, 0, row), filled, tile)
        else:
            copy_in(desc, at(place, row, 0), filled, tile)

    @gluon.jit
    def fill_nothing(self, slot, uses):
        """Producer: lets the consumer go on that waits for a tile, as there are no more."""
        mbarrier.wait(self.freed.index(slot), (uses & 1) ^ 1)
        mbarrier.arrive(self.filled.index(slot), count=1)

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
        tile = as_matrix(self.tiles.index(slot))
        if self.TRANSPOSED:
            tile = tile.permute((1, 0))
        return tile

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
    """(1, ..., heads, rows, columns) in shared memory as (heads * rows, columns)."""
    return tile.reshape([tile.shape[-3] * tile.shape[-2], tile.shape[-1]])


@gluon.jit
def new_ring(
    descs, REST: gl.constexpr, SLOTS: gl.constexpr, READERS: gl.constexpr,
    TRANSPOSED: gl.constexpr = False,
):  # fmt: skip
    """A ring for tiles of two descriptors (1, ..., heads, rows, columns), the second for the rest;
    for one of (1, 1, columns, rows) without a rest if TRANSPOSED."""
    desc, rest_desc = descs
    tiles = new_tiles(desc, SLOTS)
    rests = tiles
    if REST:
        rests = new_tiles(rest_desc, SLOTS)
    filled, freed = new_barriers(SLOTS, 1), new_barriers(SLOTS, READERS)
    return Ring(tiles, rests, filled, freed, SLOTS, REST, TRANSPOSED)


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
def no_row_sum(N: gl.constexpr, DEFER_ROW_SUM: gl.constexpr):
    """Row sums before the first block of N columns."""
    if DEFER_ROW_SUM:
        row_sum = gl.full([64, 4], 0.0, gl.float32, lane_sum_layout())
    else:
        row_sum = gl.full([64], 0.0, gl.float32, row_layout(N))
    return row_sum


@gluon.jit
def whole_row_sum(row_sum, N: gl.constexpr, DEFER_ROW_SUM: gl.constexpr):
    """Row sums after the last block, one per row."""
    if DEFER_ROW_SUM:
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), row_layout(N))
    return row_sum


@gluon.jit
def tanh(x):
    """The hardware's, of fp32: relative error up to 2^-11 (PTX ISA, tanh.approx.f32)."""
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def online_softmax(
    s, row_max, row_sum, scale_log2,
    MASKED: gl.constexpr, DEFER_ROW_SUM: gl.constexpr, RESCALE_THRESHOLD: gl.constexpr,
    P_LOG2: gl.constexpr,
    EX2_EMULATION_FREQ: gl.constexpr,
):  # fmt: skip
    """One block of scores: (p, row_max, row_sum, decay), maxima in units of log2.

    FlashAttention-2, arXiv:2307.08691, algorithm 1, lines 8 and 9. DEFER_ROW_SUM: a row's sum stays
    spread over its four lanes until `whole_row_sum`, which saves two shuffles per block and row.
    RESCALE_THRESHOLD: a maximum stays until scores exceed it by more; decay is then nearly always
    1, and p up to 2^RESCALE_THRESHOLD. Any shift of the exponents gives the same quotient in the
    end (as FlashAttention-4 does on Blackwell). P_LOG2: maxima are lowered by so much, so that p
    and row_sum are 2^P_LOG2 times as large.
    """
    N: gl.constexpr = s.shape[1]
    block_max = gl.max(s, 1) * scale_log2
    if P_LOG2:
        block_max -= P_LOG2
    if RESCALE_THRESHOLD:
        new_max = gl.where(block_max > row_max + RESCALE_THRESHOLD, block_max, row_max)
    else:
        new_max = gl.maximum(row_max, block_max)
    shift = new_max
    if MASKED:  # a row that has seen no key yet: -inf - -inf would be NaN
        shift = gl.where(new_max == -float("inf"), 0.0, new_max)
    p = exp2(s * scale_log2 - shift[:, None], EX2_EMULATION_FREQ)
    decay = gl.exp2(row_max - shift)
    if DEFER_ROW_SUM:
        lanes: gl.constexpr = lane_sum_layout()
        pairs = gl.sum(gl.sum(p.reshape([64, N // 8, 4, 2]), 3), 1)
        rows = gl.convert_layout(decay, gl.SliceLayout(1, lanes), assert_trivial=True)
        row_sum = row_sum * rows[:, None] + gl.convert_layout(pairs, lanes, assert_trivial=True)
    else:
        row_sum = row_sum * decay + gl.sum(p, 1)
    return p, new_max, row_sum, decay


@gluon.jit
def exp2(x, PART: gl.constexpr):
    """2^x of 64 x N; a PART-th of the columns as products and sums, which have a pipe of their own,
    none if 0."""
    if PART == 0:
        y = gl.exp2(x)
    elif PART == 1:
        y = exp2_by_products(x)
    else:
        N: gl.constexpr = x.shape[1]
        left, right = x.reshape([64, 2, N // 2]).permute((0, 2, 1)).split()
        y = beside(gl.exp2(left), exp2(right, PART // 2))
        y = gl.convert_layout(y, x.type.layout, assert_trivial=True)
    return y


@gluon.jit
def beside(left, right):
    """(64, N) twice as (64, 2 N), which moves no register."""
    return gl.join(left, right).permute((0, 2, 1)).reshape([64, 2 * left.shape[1]])


_ROUNDING = gl.constexpr(1.5 * 2**23)
"""Added to a small fp32 it leaves the nearest integer in the lowest bits."""


@gluon.jit
def exp2_by_products(x):
    """2^x for x up to 100, and 0 for what is below -127.

    Cody and Waite, "Software Manual for the Elementary Functions" (1980), chapter 6: the nearest
    integer goes to the exponent, a polynomial of the rest does the mantissa.
    """
    x = gl.maximum(x, -127.0)
    shifted = x + _ROUNDING
    rest = x - (shifted - _ROUNDING)
    # Of the cubics that are 1 at 0 the one with the least relative error between -1/2 and 1/2,
    # 1.0e-4. They must be: what -127 leaves of any other is no number.
    y = ((0.0550091 * rest + 0.2422110) * rest + 0.6932829) * rest + 1.0
    bits = y.to(gl.int32, bitcast=True) + (shifted.to(gl.int32, bitcast=True) << 23)
    return bits.to(gl.float32, bitcast=True)


@gluon.jit
def rescaled(acc, decay):
    """An accumulator with each row times its decay.

    A warp whose decays are all 1 branches past the products; tensors cannot say that, PTX can.
    """
    N: gl.constexpr = acc.shape[1]
    decay = gl.convert_layout(decay, row_layout(N))
    moved = gl.inline_asm_elementwise(
        _VOTE, "=r,=r,f,f", [decay], gl.int32, is_pure=False, pack=2
    )  # the same for all rows of a warp
    # One asm takes a thread's elements in any order: each brings its own decay.
    AT_ONCE: gl.constexpr = min(32, N // 2)
    ASM: gl.constexpr = _products(AT_ONCE)
    CONSTRAINTS: gl.constexpr = _in_place(AT_ONCE)
    return gl.inline_asm_elementwise(
        ASM, CONSTRAINTS, [acc, decay[:, None], moved[:, None]], gl.float32,
        is_pure=False, pack=AT_ONCE,
    )  # fmt: skip


_VOTE = gl.constexpr("""{
    .reg .pred moved;
    setp.neu.f32 moved, $2, 0f3F800000;
    setp.neu.or.f32 moved, $3, 0f3F800000, moved;
    vote.sync.any.pred moved, moved, 0xffffffff;
    selp.b32 $0, 1, 0, moved;
    selp.b32 $1, 1, 0, moved;
}""")


@gluon.constexpr_function
def _products(n):
    """PTX: n elements times n decays, unless the flags that come last are 0."""
    products = [f"mul.f32 ${i}, ${i}, ${2 * n + i};" for i in range(n)]
    begin = f"{{ .reg .pred still; setp.eq.b32 still, ${3 * n}, 0; @still bra DONE;"
    return "\n".join([begin, *products, "DONE: }"])


@gluon.constexpr_function
def _in_place(n):
    """The constraints of `_products`: results lie where the elements were."""
    return ",".join(["=f"] * n + [str(i) for i in range(n)] + ["f"] * n + ["r"] * n)
