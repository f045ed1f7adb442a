"""What a launch of the attention forward knows: which keys a row sees, and what its warps share."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.api import aggregate
from tunefa.kernels.gluon.pipeline import Pipeline, SchedulerBarrier
from tunefa.kernels.gluon.softmax import tanh


@aggregate
class Attention:
    """The parameters of one launch: sizes, known when it runs, and the tile, known when it is
    compiled.

    CAUSAL: each row has a last key of its own. AHEAD: this key is beyond the bottom-right diagonal.
    ROWS: query rows in a warpgroup's 64 rows, which hold PACK_GQA heads one after the other.
    """

    heads: gl.tensor
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    window_keys: gl.tensor
    window_right: gl.tensor
    scale_log2: gl.tensor
    tanh_scale: gl.tensor
    WARPGROUPS: gl.constexpr
    PACK_GQA: gl.constexpr
    ROWS: gl.constexpr
    BLOCK_N: gl.constexpr
    Q_STAGES: gl.constexpr
    EPILOGUE_SUBTILE: gl.constexpr
    DEFER_ROW_SUM: gl.constexpr
    RESCALE_THRESHOLD: gl.constexpr
    SPLIT_DIAGONAL_BLOCK: gl.constexpr
    LOAD_K_FIRST: gl.constexpr
    EX2_EMULATION_FREQ: gl.constexpr
    CAUSAL: gl.constexpr
    WINDOWED: gl.constexpr
    AHEAD: gl.constexpr
    SOFTCAP: gl.constexpr
    RAGGED: gl.constexpr
    E4M3: gl.constexpr
    VARLEN: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, like=None, **fields):
        """Takes all fields by name; fields that are left out are those of `like`."""
        if like is not None:
            fields = vars(like) | fields
        for name, value in fields.items():
            is_value = isinstance(value, gl.tensor | gl.constexpr)
            setattr(self, name, value if is_value else gl.constexpr(value))

    @gluon.jit
    def with_scale(self, factor):
        """Returns the same launch with scores, before their soft-cap, `factor` times as large."""
        factor = gl.maximum(factor, 1e-30)  # 0 times a hidden key's -inf would be NaN
        if self.SOFTCAP:
            made = Attention(like=self, tanh_scale=self.tanh_scale * factor)
        else:
            made = Attention(like=self, scale_log2=self.scale_log2 * factor)
        return made

    @gluon.jit
    def diagonal(self):
        """Returns d, where row i sees keys up to i + d: that of a bottom-right aligned causal mask,
        or a larger one."""
        diagonal = self.seqlen_k - self.seqlen_q
        if self.AHEAD:
            diagonal += self.window_right
        return diagonal

    @gluon.jit
    def for_tile(self, tile):
        """Returns the same launch with the lengths of a tile's own sequence."""
        a = self
        if self.VARLEN:
            a = Attention(like=self, seqlen_q=tile.seqlen_q, seqlen_k=tile.seqlen_k)
        return a

    @gluon.jit
    def q_stage(self, work_idx, WG: gl.constexpr):
        """Returns the stage of the queries that warpgroup WG has in tile number `work_idx` of this
        CTA, and how many queries were in it before."""
        return work_idx % self.Q_STAGES * self.WARPGROUPS + WG, work_idx // self.Q_STAGES

    @gluon.jit
    def rows_before(self, tile):
        """Returns how many rows of lse, of all heads, come before those of a tile's sequence."""
        before = (tile.batch * self.heads + tile.head).to(gl.int64) * self.seqlen_q
        if self.VARLEN:  # the launch's seqlen_q is the sum of all sequences'
            before = tile.head.to(gl.int64) * self.seqlen_q + tile.q_begin
        return before

    @gluon.jit
    def blocks(self, row, ROWS: gl.constexpr):
        """Returns [begin, end) of the key blocks that query rows [row, row + ROWS) see, at least
        one block."""
        BLOCK_N: gl.constexpr = self.BLOCK_N
        end = (self.seqlen_k + BLOCK_N - 1) // BLOCK_N
        if self.VARLEN:  # a sequence may have no keys at all
            end = gl.maximum(end, 1)
        offset = self.diagonal()
        if self.CAUSAL:
            seen = gl.minimum(row + ROWS, self.seqlen_q) + offset
            if self.AHEAD:
                seen = gl.minimum(seen, self.seqlen_k)
            end = gl.maximum((seen + BLOCK_N - 1) // BLOCK_N, 1)
        begin = 0
        if self.WINDOWED:
            first = gl.maximum(row + offset - self.window_keys + 1, 0)
            begin = gl.minimum(first // BLOCK_N, end - 1)
        return begin, end

    @gluon.jit
    def crosses(self, row, key_block):
        """Returns whether some row of a warpgroup does not see some key of a block."""
        key = key_block * self.BLOCK_N
        last = self.seqlen_k - 1
        if self.CAUSAL:
            last = gl.minimum(last, row + self.diagonal())
        crosses = key + self.BLOCK_N - 1 > last
        if self.WINDOWED:
            crosses = crosses | (key <= row + self.ROWS - 1 + self.diagonal() - self.window_keys)
        return crosses

    @gluon.jit
    def rows(self, row, layout: gl.constexpr):
        """Returns (query row, head minus the tile's first head) of a warpgroup's 64 rows from
        `row`."""
        rows = gl.arange(0, 64, layout)
        heads = 0
        if self.PACK_GQA > 1:
            heads = rows // self.ROWS
            rows = rows % self.ROWS
        return row + rows, heads

    @gluon.jit
    def masked(self, s, row, key):
        """Returns scores of 64 rows from `row` and keys from `key`, -inf where a row does not see
        the key."""
        layout: gl.constexpr = s.type.layout
        keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, layout))
        if self.CAUSAL:
            rows, _ = self.rows(row, gl.SliceLayout(1, layout))
            diagonal = rows + self.diagonal()
            last = gl.minimum(diagonal, self.seqlen_k - 1)
            seen = keys[None, :] <= last[:, None]
            if self.WINDOWED:
                seen = seen & (keys[None, :] > (diagonal - self.window_keys)[:, None])
            s = gl.where(seen, s, -float("inf"))
        else:
            s = gl.where(keys[None, :] < self.seqlen_k, s, -float("inf"))
        return s

    @gluon.jit
    def capped(self, s):
        """Returns scores as `online_softmax` scales them: tanh(scale * s / softcap) with a
        soft-cap."""
        if self.SOFTCAP:
            s = tanh(s * self.tanh_scale)
        return s


@aggregate
class Pipelines:
    """What the producer and the consumers of a CTA share."""

    q: Pipeline
    k: Pipeline
    v: Pipeline
    scheduler: SchedulerBarrier
    schedule: gl.tensor
    tiles: gl.tensor
    work_info: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, q, k, v, scheduler, schedule, tiles, work_info):
        self.q, self.k, self.v, self.scheduler = q, k, v, scheduler
        self.schedule, self.tiles, self.work_info = schedule, tiles, work_info
