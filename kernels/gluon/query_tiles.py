"""The sizes and tiles of the pass that computes dQ, and what the warps of its CTAs share."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.api import aggregate
from tunefa.kernels.gluon.layouts import as_matrix


@aggregate
class QueryPass:
    """The parameters of one launch: sizes, known when it runs, and the tile, known when it is
    compiled.

    `rows` are the rows of a query head in the scratch tensors, `tiles` are those of all CTAs.
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
    CAUSAL: gl.constexpr
    MASKED: gl.constexpr
    MASK_LOOP: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, **fields):
        """Takes all fields by name."""
        for name, value in fields.items():
            is_value = isinstance(value, gl.tensor | gl.constexpr)
            setattr(self, name, value if is_value else gl.constexpr(value))

    @gluon.jit
    def diagonal(self):
        """Returns d, where row i sees keys up to i + d: that of a bottom-right aligned mask."""
        return self.seqlen_k - self.seqlen_q

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
        return QueryTile(batch, head, head // group, row, self.end(row, ROWS))

    @gluon.jit
    def end(self, row, ROWS: gl.constexpr):
        """Returns how many key blocks the query rows [row, row + ROWS) see, at least one. They
        are the first ones of the sequence."""
        BLOCK_N: gl.constexpr = self.BLOCK_N
        end = (self.seqlen_k + BLOCK_N - 1) // BLOCK_N
        if self.CAUSAL:
            seen = gl.minimum(row + ROWS, self.seqlen_q) + self.diagonal()
            end = gl.maximum((seen + BLOCK_N - 1) // BLOCK_N, 1)
        return gl.where(row < self.seqlen_q, end, 1)

    @gluon.jit
    def unmasked(self, row):
        """Returns how many key blocks every row from `row` on sees as a whole."""
        BLOCK_N: gl.constexpr = self.BLOCK_N
        keys = self.seqlen_k
        if self.CAUSAL:
            keys = gl.maximum(row + self.diagonal() + 1, 0)
        return keys // BLOCK_N

    @gluon.jit
    def masked(self, p, row, key):
        """Returns probabilities (rows, keys), 0 where a row does not see the key."""
        layout: gl.constexpr = p.type.layout
        keys = gl.arange(0, p.shape[1], gl.SliceLayout(0, layout))
        if self.CAUSAL:  # keys beyond seqlen_k are beyond the diagonal of every row
            rows = gl.arange(0, p.shape[0], gl.SliceLayout(1, layout))
            seen = keys[None, :] <= (rows + (row + self.diagonal() - key))[:, None]
        else:
            seen = (keys < self.seqlen_k - key)[None, :]
        return gl.where(seen, p, 0.0)


@aggregate
class QueryTile:
    """The 64 * WARPGROUPS query rows of one head from `row` on.

    It goes through the first `blocks` key blocks, the last one first.
    """

    batch: gl.tensor
    head: gl.tensor
    head_kv: gl.tensor
    row: gl.tensor
    blocks: gl.tensor

    @gluon.constexpr_function
    def __init__(self, batch, head, head_kv, row, blocks):
        self.batch, self.head, self.head_kv = batch, head, head_kv
        self.row, self.blocks = row, blocks


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
