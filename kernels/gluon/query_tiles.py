"""The sizes and tiles of the pass that computes dQ, and what the warps of its CTAs share."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.api import aggregate
from tunefa.kernels.gluon.gradient_passes import diagonal_of
from tunefa.kernels.gluon.layouts import as_matrix


@aggregate
class QueryPass:
    """The parameters of one launch: sizes, known when it runs, and the tile, known when it is
    compiled.

    `rows` are the rows of a query head in the scratch tensors, `tiles` are those of all CTAs.
    CAUSAL: rows see no keys beyond a diagonal, which with AHEAD is `window_right` keys further to
    the right. WINDOWED: they see the last `window_keys` keys up to it.
    MASKED: some tile has keys that some of its rows do not see. MASK_LOOP: a warpgroup may have
    more than one block of such keys.
    """

    heads: gl.tensor
    heads_kv: gl.tensor
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    rows: gl.tensor
    tiles: gl.tensor
    section_heads: gl.tensor
    window_keys: gl.tensor
    window_right: gl.tensor
    scale_log2: gl.tensor
    scale: gl.tensor
    COLUMNS: gl.constexpr
    WARPGROUPS: gl.constexpr
    BLOCK_N: gl.constexpr
    Q_STAGES: gl.constexpr
    K_STAGES: gl.constexpr
    V_STAGES: gl.constexpr
    PREFETCH_S: gl.constexpr
    Q_IN_REGISTERS: gl.constexpr
    PERSISTENT: gl.constexpr
    DEPENDENT_LAUNCH: gl.constexpr
    P_BYTES: gl.constexpr
    CAUSAL: gl.constexpr
    WINDOWED: gl.constexpr
    AHEAD: gl.constexpr
    MASKED: gl.constexpr
    MASK_LOOP: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, **fields):
        """Takes all fields by name."""
        for name, value in fields.items():
            is_value = isinstance(value, gl.tensor | gl.constexpr)
            setattr(self, name, value if is_value else gl.constexpr(value))

    @gluon.jit
    def tile(self, number):
        """Returns a tile by its number.

        Tiles start in the order of their numbers. Sections of `section_heads` KV heads come one
        after the other, so that the L2 cache holds their K and V. Under a causal mask a section
        begins with the last rows of all its heads, which see most keys: the shortest tiles come
        last, and all SMs end at about the same time.
        """
        ROWS: gl.constexpr = 64 * self.WARPGROUPS
        group = self.heads // self.heads_kv
        blocks = (self.rows + ROWS - 1) // ROWS
        all_heads = self.tiles // blocks
        section_heads = self.section_heads * group
        section = number // (blocks * section_heads)
        within = number - section * blocks * section_heads
        first = section * section_heads
        if self.CAUSAL:
            heads = gl.minimum(all_heads - first, section_heads)
            of_all, block = first + within % heads, blocks - 1 - within // heads
        else:
            of_all, block = first + within // blocks, within % blocks
        batch, head = of_all // self.heads, of_all % self.heads
        row = block * ROWS
        first = self.first(row)
        return QueryTile(batch, head, head // group, row, first, self.end(row, ROWS) - first)

    @gluon.jit
    def first(self, row):
        """Returns the first key block that the query rows from `row` on see."""
        first = 0
        if self.WINDOWED:
            key = row + diagonal_of(self) - self.window_keys + 1
            first = gl.where(row < self.seqlen_q, gl.maximum(key, 0) // self.BLOCK_N, 0)
        return first

    @gluon.jit
    def end(self, row, ROWS: gl.constexpr):
        """Returns the key block after the last one that the query rows [row, row + ROWS) see, at
        least 1."""
        BLOCK_N: gl.constexpr = self.BLOCK_N
        end = (self.seqlen_k + BLOCK_N - 1) // BLOCK_N
        if self.CAUSAL:
            seen = gl.minimum(row + ROWS, self.seqlen_q) + diagonal_of(self)
            if self.AHEAD:
                seen = gl.minimum(seen, self.seqlen_k)
            end = gl.maximum((seen + BLOCK_N - 1) // BLOCK_N, 1)
        return gl.where(row < self.seqlen_q, end, 1)

    @gluon.jit
    def unmasked(self, row):
        """Returns before which key block no row from `row` on needs a mask, except for a window
        to the left."""
        BLOCK_N: gl.constexpr = self.BLOCK_N
        keys = self.seqlen_k
        if self.CAUSAL:
            keys = gl.maximum(row + diagonal_of(self) + 1, 0)
            if self.AHEAD:
                keys = gl.minimum(keys, self.seqlen_k)
        return keys // BLOCK_N

    @gluon.jit
    def windowed(self, row):
        """Returns from which key block on each of 64 rows from `row` on is inside its window, as
        far as it reaches to the left."""
        key = row + 63 + diagonal_of(self) - self.window_keys + 1
        return (gl.maximum(key, 0) + self.BLOCK_N - 1) // self.BLOCK_N

    @gluon.jit
    def masked(self, p, row, key):
        """Returns probabilities (rows, keys), 0 where a row does not see the key."""
        layout: gl.constexpr = p.type.layout
        keys = gl.arange(0, p.shape[1], gl.SliceLayout(0, layout))
        if self.CAUSAL:  # without AHEAD, keys beyond seqlen_k are beyond every row's diagonal
            rows = gl.arange(0, p.shape[0], gl.SliceLayout(1, layout))
            last = rows + (row + diagonal_of(self) - key)
            seen = keys[None, :] <= last[:, None]
            if self.WINDOWED:
                seen = seen & (keys[None, :] > (last - self.window_keys)[:, None])
            if self.AHEAD:
                seen = seen & (keys < self.seqlen_k - key)[None, :]
        else:
            seen = (keys < self.seqlen_k - key)[None, :]
        return gl.where(seen, p, 0.0)


@aggregate
class QueryTile:
    """The 64 * WARPGROUPS query rows of one head from `row` on.

    It goes through `blocks` key blocks from number `first` on, the last one first.
    """

    batch: gl.tensor
    head: gl.tensor
    head_kv: gl.tensor
    row: gl.tensor
    first: gl.tensor
    blocks: gl.tensor

    @gluon.constexpr_function
    def __init__(self, batch, head, head_kv, row, first, blocks):
        self.batch, self.head, self.head_kv = batch, head, head_kv
        self.row, self.first, self.blocks = row, first, blocks


@aggregate
class QueryShared:
    """The buffers and barriers in shared memory.

    Q and dO stay for the whole tile, one piece of 64 rows per warpgroup with its own barriers:
    `q_empty` completes when the warpgroup has finished with both. K and V go through stages of
    their own: `k_full` completes when TMA has copied a block, `k_empty` when every warpgroup has
    finished with it.
    """

    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    do_full: gl.shared_memory_descriptor
    q_empty: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    k_empty: gl.shared_memory_descriptor
    v_empty: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, **fields):
        """Takes all fields by name."""
        for name, value in fields.items():
            setattr(self, name, value)

    @gluon.jit
    def q_rows(self, piece):
        """Returns Q of a warpgroup, (64, COLUMNS)."""
        return as_matrix(self.q.index(piece))

    @gluon.jit
    def do_rows(self, piece):
        """Returns dO of a warpgroup, (64, COLUMNS)."""
        return as_matrix(self.do.index(piece))

    @gluon.jit
    def k_block(self, stage):
        """Returns a block of K, (BLOCK_N, COLUMNS)."""
        return as_matrix(self.k.index(stage))

    @gluon.jit
    def v_block(self, stage):
        """Returns a block of V, (BLOCK_N, COLUMNS)."""
        return as_matrix(self.v.index(stage))
