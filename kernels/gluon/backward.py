"""The sizes and tiles of a launch of the attention backward, and what its warps share."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.api import aggregate
from tunefa.kernels.gluon.layouts import as_matrix

SPLIT_COLUMNS = gl.constexpr(0)
"""DQ_SPLIT: every warpgroup computes an equal part of the columns of each dQ."""
TAKE_TURNS = gl.constexpr(1)
"""DQ_SPLIT: the warpgroups compute the whole dQ of one query block each, one after the other."""
SPLIT_ROWS = gl.constexpr(2)
"""DQ_SPLIT: every warpgroup computes 64 rows of each dQ."""


@aggregate
class Backward:
    """The parameters of one launch: sizes, known when it runs, and the tile, known when it is
    compiled.

    `rows` are the rows of a query head in the scratch tensors, a multiple of UNIT. A unit is
    UNIT // BLOCK_M query blocks; all loops over query blocks go from unit to unit.
    MASKED: some tile has keys that some of its rows do not see. PEELED: units of a tile that come
    before its loops, and are masked if any is. MASK_LOOP: others may need a mask too. GROUPED: a KV
    head has several query heads.
    """

    heads: gl.tensor
    heads_kv: gl.tensor
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    rows: gl.tensor
    section_heads: gl.tensor
    scale_log2: gl.tensor
    scale: gl.tensor
    COLUMNS: gl.constexpr
    WARPGROUPS: gl.constexpr
    BLOCK_M: gl.constexpr
    UNIT: gl.constexpr
    Q_STAGES: gl.constexpr
    DS_STAGES: gl.constexpr
    DQ_STAGES: gl.constexpr
    DQ_SPLIT: gl.constexpr
    KV_IN_REGISTERS: gl.constexpr
    PREFETCH_S: gl.constexpr
    DEFER_ROW_LOADS: gl.constexpr
    STAGGER: gl.constexpr
    CAUSAL: gl.constexpr
    MASKED: gl.constexpr
    PEELED: gl.constexpr
    MASK_LOOP: gl.constexpr
    GROUPED: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, **fields):
        """Takes all fields by name."""
        for name, value in fields.items():
            is_value = isinstance(value, gl.tensor | gl.constexpr)
            setattr(self, name, value if is_value else gl.constexpr(value))

    @gluon.jit
    def group(self):
        """Returns the number of query heads of a KV head."""
        group = self.heads // self.heads_kv
        if not self.GROUPED:
            group = 1
        return group

    @gluon.jit
    def diagonal(self):
        """Returns d, where row i sees keys up to i + d: that of a bottom-right aligned mask."""
        return self.seqlen_k - self.seqlen_q

    @gluon.jit
    def tile(self):
        """Returns the tile of this CTA.

        CTAs start in the order of their numbers. Sections of `section_heads` KV heads come one
        after the other, so that the L2 cache holds what they share. Under a causal mask a section
        begins with the first keys of all its heads, which most rows see: the shortest tiles come
        last, and all SMs end at about the same time.
        """
        BLOCK_N: gl.constexpr = 64 * self.WARPGROUPS
        blocks = (self.seqlen_k + BLOCK_N - 1) // BLOCK_N
        all_heads = gl.num_programs(0) // blocks
        section = gl.program_id(0) // (blocks * self.section_heads)
        within = gl.program_id(0) - section * blocks * self.section_heads
        first = section * self.section_heads
        if self.CAUSAL:
            heads = gl.minimum(all_heads - first, self.section_heads)
            head, block = first + within % heads, within // heads
        else:
            head, block = first + within // blocks, within % blocks
        return self._tile_at(head // self.heads_kv, head % self.heads_kv, block)

    @gluon.jit
    def _tile_at(self, batch, head_kv, block):
        """Returns the tile of a block of keys. At least one row sees its first key."""
        BLOCK_N: gl.constexpr = 64 * self.WARPGROUPS
        UNIT: gl.constexpr = self.UNIT
        key = block * BLOCK_N
        end = self.rows // UNIT
        begin, masked = 0, 0
        if self.CAUSAL:
            begin = gl.maximum(key - self.diagonal(), 0) // UNIT
            # Rows from here on see every key of the tile; rows beyond seqlen_q do not matter.
            past = gl.maximum(key + BLOCK_N - 1 - self.diagonal(), 0)
            masked = gl.minimum((past + UNIT - 1) // UNIT, end) - begin
        elif self.MASKED:
            masked = gl.where(key + BLOCK_N > self.seqlen_k, end, 0)
        units = end - begin
        shift = 0
        if self.STAGGER:  # only full masks have it
            shift = (block * self.STAGGER) % units
        return Tile(batch, head_kv, key, begin * UNIT, units, masked, shift)

    @gluon.jit
    def row(self, tile, unit):
        """Returns the first query row of a tile's unit.

        With STAGGER they are rotated, so that the CTAs of one head do not add to the same rows of
        dQ at the same time.
        """
        if self.STAGGER:
            unit += tile.shift
            unit = gl.where(unit >= tile.units, unit - tile.units, unit)
        return tile.row + unit * self.UNIT

    @gluon.jit
    def rows_before(self, tile, member):
        """Returns how many rows of the scratch tensors, of all heads, come before those of a query
        head: number `member` of the tile's group."""
        head = tile.head_kv * self.group() + member
        return (tile.batch * self.heads + head) * self.rows

    @gluon.jit
    def masked(self, p, row, key):
        """Returns probabilities (keys, rows), 0 where a row does not see the key."""
        layout: gl.constexpr = p.type.layout
        keys = gl.arange(0, p.shape[0], gl.SliceLayout(1, layout))
        if self.CAUSAL:  # keys beyond seqlen_k are beyond the diagonal of every row
            rows = gl.arange(0, p.shape[1], gl.SliceLayout(0, layout))
            seen = (keys - (row + self.diagonal() - key))[:, None] <= rows[None, :]
        else:
            seen = (keys < self.seqlen_k - key)[:, None]
        return gl.where(seen, p, 0.0)


@aggregate
class Tile:
    """A block of 64 * WARPGROUPS keys of one KV head from `key` on: the work of one CTA.

    It goes through `units` units of query rows from `row` on, of each query head of the group. The
    first `masked` ones have rows that do not see all keys.
    """

    batch: gl.tensor
    head_kv: gl.tensor
    key: gl.tensor
    row: gl.tensor
    units: gl.tensor
    masked: gl.tensor
    shift: gl.tensor

    @gluon.constexpr_function
    def __init__(self, batch, head_kv, key, row, units, masked, shift):
        self.batch, self.head_kv, self.key = batch, head_kv, key
        self.row, self.units, self.masked, self.shift = row, units, masked, shift


@aggregate
class Shared:
    """The buffers and barriers in shared memory.

    K and V stay for the whole tile, one piece of 64 keys per warpgroup. Q with lse, and dO with
    delta, go through Q_STAGES stages: `q_full` and `do_full` complete when TMA has copied them,
    `q_empty` of both when every warpgroup has finished the step. `ds_full` completes when every
    warpgroup has stored its part of dS.
    """

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor
    ds: gl.shared_memory_descriptor
    dq: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    do_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    ds_full: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, **fields):
        """Takes all fields by name."""
        for name, value in fields.items():
            setattr(self, name, value)

    @gluon.jit
    def k_rows(self, WG: gl.constexpr):
        """Returns K of a warpgroup, (64, COLUMNS)."""
        return as_matrix(self.k.index(WG))

    @gluon.jit
    def v_rows(self, WG: gl.constexpr):
        """Returns V of a warpgroup, (64, COLUMNS)."""
        return as_matrix(self.v.index(WG))

    @gluon.jit
    def q_block(self, stage):
        """Returns a block of Q, (BLOCK_M, COLUMNS)."""
        return as_matrix(self.q.index(stage))

    @gluon.jit
    def do_block(self, stage):
        """Returns a block of dO, (BLOCK_M, COLUMNS)."""
        return as_matrix(self.do.index(stage))
