"""The sizes and tiles of the dKV pass of the two-pass attention backward, and its shared memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.api import aggregate
from tunefa.kernels.gluon.gradient_passes import diagonal_of
from tunefa.kernels.gluon.layouts import as_matrix


@aggregate
class KeyPass:
    """The parameters of one launch: sizes, known when it runs, and the tile, known when it is
    compiled.

    `rows` are the rows of a query head in the tensors of lse and delta, a multiple of BLOCK_M.
    A tile has PIECES times 64 keys. PERSISTENT: a CTA works on several of the `tiles` one after the
    other. MASKED: some tile has keys that some of its rows do not see.
    CAUSAL: rows see no keys beyond a diagonal, which with AHEAD is `window_right` keys further to
    the right. WINDOWED: they see the last `window_keys` keys up to it.
    GROUPED: a KV head has several query heads.
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
    PIECES: gl.constexpr
    BLOCK_M: gl.constexpr
    Q_STAGES: gl.constexpr
    KV_IN_REGISTERS: gl.constexpr
    PREFETCH_S: gl.constexpr
    DEFER_ROW_LOADS: gl.constexpr
    P_BYTES: gl.constexpr
    PERSISTENT: gl.constexpr
    DEPENDENT_LAUNCH: gl.constexpr
    KV_STAGES: gl.constexpr
    CAUSAL: gl.constexpr
    WINDOWED: gl.constexpr
    AHEAD: gl.constexpr
    MASKED: gl.constexpr
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
    def tile(self, number):
        """Returns a tile by its number.

        Tiles start in the order of their numbers. Sections of `section_heads` KV heads come one
        after the other, so that the L2 cache holds what they share. Under a causal mask a section
        begins with the first keys of all its heads, which most rows see: the shortest tiles come
        last, and all SMs end at about the same time.
        """
        BLOCK_N: gl.constexpr = 64 * self.PIECES
        blocks = (self.seqlen_k + BLOCK_N - 1) // BLOCK_N
        all_heads = self.tiles // blocks
        section = number // (blocks * self.section_heads)
        within = number - section * blocks * self.section_heads
        first = section * self.section_heads
        if self.CAUSAL:
            heads = gl.minimum(all_heads - first, self.section_heads)
            head, block = first + within % heads, within // heads
        else:
            head, block = first + within // blocks, within % blocks
        return self._tile_at(head // self.heads_kv, head % self.heads_kv, block * BLOCK_N)

    @gluon.jit
    def _tile_at(self, batch, head_kv, key):
        """Returns the tile of the keys from `key` on. At least one row sees its first key."""
        BLOCK_N: gl.constexpr = 64 * self.PIECES
        BLOCK_M: gl.constexpr = self.BLOCK_M
        end = (self.seqlen_q + BLOCK_M - 1) // BLOCK_M
        diagonal = diagonal_of(self)
        begin, masked = 0, 0
        if self.CAUSAL:
            begin = gl.maximum(key - diagonal, 0) // BLOCK_M
            # Rows from here on see every key of the tile; rows beyond seqlen_q do not matter.
            past = gl.maximum(key + BLOCK_N - 1 - diagonal, 0)
            if self.WINDOWED:  # one block at least, even if its rows do not see the keys
                row = gl.minimum(key + BLOCK_N, self.seqlen_k) + self.window_keys - diagonal
                seen = (gl.maximum(row - 1, 0) + BLOCK_M - 1) // BLOCK_M
                end = gl.maximum(gl.minimum(seen, end), begin + 1)
            masked = gl.minimum((past + BLOCK_M - 1) // BLOCK_M, end) - begin
        elif self.MASKED:
            masked = gl.where(key + BLOCK_N > self.seqlen_k, end, 0)
        whole = end - begin
        if self.WINDOWED:  # rows before this one see every key of the tile, as far as they begin
            row = gl.maximum(key + self.window_keys - diagonal, 0)
            whole = gl.minimum(gl.maximum(row // BLOCK_M - begin, masked), whole)
        return KeyTile(batch, head_kv, key, begin * BLOCK_M, end - begin, masked, whole)

    @gluon.jit
    def rows_before(self, tile, member):
        """Returns how many rows of lse and delta, of all heads, come before those of a query head:
        number `member` of the tile's group."""
        head = tile.head_kv * self.group() + member
        return (tile.batch * self.heads + head) * self.rows

    @gluon.jit
    def masked(self, p, row, key):
        """Returns probabilities (keys, rows), 0 where a row does not see the key."""
        layout: gl.constexpr = p.type.layout
        keys = gl.arange(0, p.shape[0], gl.SliceLayout(1, layout))
        if self.CAUSAL:  # keys beyond seqlen_k are beyond the diagonal of every row
            rows = gl.arange(0, p.shape[1], gl.SliceLayout(0, layout))
            first = keys - (row + diagonal_of(self) - key)
            seen = first[:, None] <= rows[None, :]
            if self.WINDOWED:
                seen = seen & ((first + self.window_keys)[:, None] > rows[None, :])
        else:
            seen = (keys < self.seqlen_k - key)[:, None]
        return gl.where(seen, p, 0.0)


@aggregate
class KeyTile:
    """A block of 64 * PIECES keys of one KV head from `key` on.

    It goes through `blocks` blocks of query rows from `row` on, of each query head of the group.
    Those before number `masked`, and from number `whole` on, have rows that do not see all keys.
    """

    batch: gl.tensor
    head_kv: gl.tensor
    key: gl.tensor
    row: gl.tensor
    blocks: gl.tensor
    masked: gl.tensor
    whole: gl.tensor

    @gluon.constexpr_function
    def __init__(self, batch, head_kv, key, row, blocks, masked, whole):
        self.batch, self.head_kv, self.key = batch, head_kv, key
        self.row, self.blocks, self.masked, self.whole = row, blocks, masked, whole


@aggregate
class KeyBuffers:
    """The buffers and barriers in shared memory.

    K and V stay for the whole tile, in pieces of 64 keys. A persistent CTA has two stages of them,
    so that those of the next tile arrive early; `kv_empty` completes when TMA has read dK and dV of
    the tile, which leave through the same memory. Q with lse, and dO with delta, go through
    Q_STAGES stages: `q_full` and `do_full` complete when TMA has copied them, `empty` of both when
    every consumer warpgroup has finished the step. Where two warpgroups share the work on the same
    keys, `p` takes the probabilities from one to the other, and `p_full` completes when they are
    there. Otherwise both are `empty`, and nobody uses them.
    """

    k: gl.shared_memory_descriptor
    v: gl.shared_memory_descriptor
    q: gl.shared_memory_descriptor
    do: gl.shared_memory_descriptor
    lse: gl.shared_memory_descriptor
    delta: gl.shared_memory_descriptor
    p: gl.shared_memory_descriptor
    k_full: gl.shared_memory_descriptor
    v_full: gl.shared_memory_descriptor
    q_full: gl.shared_memory_descriptor
    do_full: gl.shared_memory_descriptor
    kv_empty: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    p_full: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, **fields):
        """Takes all fields by name."""
        for name, value in fields.items():
            setattr(self, name, value)

    @gluon.jit
    def q_block(self, stage):
        """Returns a block of Q, (BLOCK_M, COLUMNS)."""
        return as_matrix(self.q.index(stage))

    @gluon.jit
    def do_block(self, stage):
        """Returns a block of dO, (BLOCK_M, COLUMNS)."""
        return as_matrix(self.do.index(stage))
