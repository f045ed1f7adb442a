"""Steps of an attention forward for Hopper in Gluon: which keys a row sees, one block of scores and
of output, and the way out of the finished rows."""

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma_wait,
)
from tunefa.kernels.gluon.api import aggregate, barrier, copy_out
from tunefa.kernels.gluon.e4m3 import p_log2
from tunefa.kernels.gluon.hopper import (
    Ring,
    Turns,
    as_matrix,
    at,
    beside,
    no_row_sum,
    online_softmax,
    row_layout,
    tanh,
    wgmma_layout,
    whole_row_sum,
)
from tunefa.kernels.gluon.products import (
    arrived,
    as_operand,
    decayed,
    outputs,
    scaled,
    scores,
    scores_arrived,
)

LN_2 = gl.constexpr(math.log(2.0))


@aggregate
class Attention:
    """One launch: sizes, known when it runs, and the tile, known when it is compiled.

    CAUSAL: each row has a last key of its own, AHEAD: it lies beyond the bottom-right diagonal.
    ROWS: query rows of a warpgroup's 64, which hold PACK_GQA heads one after the other.
    """

    heads: gl.tensor
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    window: gl.tensor
    ahead: gl.tensor
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
        """All fields by name; those that are left out are as in `like`."""
        if like is not None:
            fields = vars(like) | fields
        for name, value in fields.items():
            is_value = isinstance(value, gl.tensor | gl.constexpr)
            setattr(self, name, value if is_value else gl.constexpr(value))

    @gluon.jit
    def with_scale(self, factor):
        """The same with scores, before their soft-cap, `factor` times as large."""
        factor = gl.maximum(factor, 1e-30)  # 0 times a hidden key's -inf would be NaN
        if self.SOFTCAP:
            made = Attention(like=self, tanh_scale=self.tanh_scale * factor)
        else:
            made = Attention(like=self, scale_log2=self.scale_log2 * factor)
        return made

    @gluon.jit
    def diagonal(self):
        """Row i sees keys up to i + this: of a causal mask bottom-right aligned, or one further
        ahead."""
        diagonal = self.seqlen_k - self.seqlen_q
        if self.AHEAD:
            diagonal += self.ahead
        return diagonal

    @gluon.jit
    def of(self, tile):
        """The same for the lengths of a tile's own sequence."""
        a = self
        if self.VARLEN:
            a = Attention(like=self, seqlen_q=tile.seqlen_q, seqlen_k=tile.seqlen_k)
        return a

    @gluon.jit
    def q_slot(self, turn, ME: gl.constexpr):
        """Where the queries of a warpgroup's turn lie, and how often others did before."""
        return turn % self.Q_STAGES * self.WARPGROUPS + ME, turn // self.Q_STAGES

    @gluon.jit
    def rows_before(self, tile):
        """Rows of lse, of all heads, before those of a tile's sequence."""
        before = (tile.batch * self.heads + tile.head).to(gl.int64) * self.seqlen_q
        if self.VARLEN:  # `seqlen_q` of the launch is that of all sequences
            before = tile.head.to(gl.int64) * self.seqlen_q + tile.q_begin
        return before

    @gluon.jit
    def blocks(self, row, ROWS: gl.constexpr):
        """[begin, end) of the key blocks that query rows [row, row + ROWS) see, at least one."""
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
            first = gl.maximum(row + offset - self.window + 1, 0)
            begin = gl.minimum(first // BLOCK_N, end - 1)
        return begin, end

    @gluon.jit
    def crosses(self, row, key_block):
        """Whether some rows of a warpgroup do not see some key of a block."""
        key = key_block * self.BLOCK_N
        last = self.seqlen_k - 1
        if self.CAUSAL:
            last = gl.minimum(last, row + self.diagonal())
        crosses = key + self.BLOCK_N - 1 > last
        if self.WINDOWED:
            crosses = crosses | (key <= row + self.ROWS - 1 + self.diagonal() - self.window)
        return crosses

    @gluon.jit
    def rows(self, row, layout: gl.constexpr):
        """(query row, head beyond the first of the tile) of a warpgroup's 64 rows from `row`."""
        rows = gl.arange(0, 64, layout)
        heads = 0
        if self.PACK_GQA > 1:
            heads = rows // self.ROWS
            rows = rows % self.ROWS
        return row + rows, heads

    @gluon.jit
    def masked(self, s, row, key):
        """Scores of 64 rows from `row` and keys from `key`, -inf where a row does not see a key."""
        layout: gl.constexpr = s.type.layout
        keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, layout))
        if self.CAUSAL:
            rows, _ = self.rows(row, gl.SliceLayout(1, layout))
            diagonal = rows + self.diagonal()
            last = gl.minimum(diagonal, self.seqlen_k - 1)
            seen = keys[None, :] <= last[:, None]
            if self.WINDOWED:
                seen = seen & (keys[None, :] > (diagonal - self.window)[:, None])
            s = gl.where(seen, s, -float("inf"))
        else:
            s = gl.where(keys[None, :] < self.seqlen_k, s, -float("inf"))
        return s

    @gluon.jit
    def capped(self, s):
        """Scores as `online_softmax` scales them: tanh(scale * s / softcap) under a soft-cap."""
        if self.SOFTCAP:
            s = tanh(s * self.tanh_scale)
        return s


@aggregate
class Pipes:
    """What the producer and the consumers share."""

    q: Ring
    k: Ring
    v: Ring
    turns: Turns
    schedule: gl.tensor
    tiles: gl.tensor
    tray: gl.shared_memory_descriptor

    @gluon.constexpr_function
    def __init__(self, q, k, v, turns, schedule, tiles, tray):
        self.q, self.k, self.v, self.turns = q, k, v, turns
        self.schedule, self.tiles, self.tray = schedule, tiles, tray


# --------------------------------------------------------------------------------- blocks of keys


@gluon.jit
def first_block(a, pipes, q_slot, block, row, key_block, ME: gl.constexpr):
    """Scores and softmax of a tile's first block: (p, row_max, row_sum)."""
    N: gl.constexpr = a.BLOCK_N
    if a.CAUSAL and a.SPLIT_DIAGONAL_BLOCK:
        seen = row + a.ROWS + a.diagonal()
        if seen <= key_block * N + N // 2:  # the rest of the block is above the diagonal
            p, row_max, row_sum = masked_start(a, pipes, q_slot, block, row, key_block, N // 2, ME)
            p = widened(p, N)
            row_max = gl.convert_layout(row_max, row_layout(N), assert_trivial=True)
            if not a.DEFER_ROW_SUM:
                row_sum = gl.convert_layout(row_sum, row_layout(N), assert_trivial=True)
        else:
            p, row_max, row_sum = masked_start(a, pipes, q_slot, block, row, key_block, N, ME)
    else:
        p, row_max, row_sum = masked_start(a, pipes, q_slot, block, row, key_block, N, ME)
    return p, row_max, row_sum


@gluon.jit
def masked_start(a, pipes, q_slot, block, row, key_block, N: gl.constexpr, ME: gl.constexpr):
    """`first_block` of the first N keys of it."""
    k = pipes.k
    GUARD: gl.constexpr = a.RAGGED and (a.CAUSAL or a.VARLEN)
    s_token = scores(pipes.q, q_slot, k, block % k.SLOTS, N)
    pipes.turns.give(ME)
    s = warpgroup_mma_wait(0, [s_token])
    s = gl.convert_layout(s, wgmma_layout(N), assert_trivial=True)
    k.free(block % k.SLOTS)
    s = a.capped(s)
    if a.CAUSAL or a.RAGGED:
        s = a.masked(s, row, key_block * a.BLOCK_N)
    row_max = gl.full([64], -float("inf"), gl.float32, row_layout(N))
    row_sum = no_row_sum(N, a.DEFER_ROW_SUM)
    p, row_max, row_sum, _ = online_softmax(
        s,
        row_max,
        row_sum,
        a.scale_log2,
        GUARD,
        a.DEFER_ROW_SUM,
        0,
        p_log2(a.E4M3),
        a.EX2_EMULATION_FREQ,
    )
    return p, row_max, row_sum


@gluon.jit
def widened(p, N: gl.constexpr):
    """(64, N // 2) as (64, N) with zeros on the right, which moves no register."""
    return gl.convert_layout(beside(p, gl.zeros_like(p)), wgmma_layout(N), assert_trivial=True)


@gluon.jit
def step(a, pipes, q_slot, state, block, row, key_block, ME: gl.constexpr):
    """Scores and softmax of a block, number `block` of all, and p @ v of the one before.

    `state` is (output, p, row_max, row_sum, decay): what p @ v of the last block is still to be
    added to, and by what it has to be multiplied first.
    """
    GUARD: gl.constexpr = a.CAUSAL and a.RAGGED
    acc, p, row_max, row_sum, decay = state
    k, v, turns = pipes.k, pipes.v, pipes.turns
    k.wait(block % k.SLOTS, block // k.SLOTS)
    turns.wait(block, ME)
    s = scores(pipes.q, q_slot, k, block % k.SLOTS, a.BLOCK_N)
    before = block - 1
    if (
        a.RESCALE_THRESHOLD
    ):  # at the end of the step a branch would keep exponentials from the wait's shadow
        acc = decayed(acc, decay, v)
    v.wait(before % v.SLOTS, before // v.SLOTS)
    acc = outputs(p, v, before % v.SLOTS, acc)
    turns.give(ME)
    s = scores_arrived(s, v)
    k.free(block % k.SLOTS)
    s = a.capped(s)
    if GUARD:
        if a.crosses(row, key_block):
            s = a.masked(s, row, key_block * a.BLOCK_N)
    p32, row_max, row_sum, new_decay = online_softmax(
        s,
        row_max,
        row_sum,
        a.scale_log2,
        GUARD,
        a.DEFER_ROW_SUM,
        a.RESCALE_THRESHOLD,
        p_log2(a.E4M3),
        a.EX2_EMULATION_FREQ,
    )
    # ptxas moves most exponentials below this wait. Forbidding that costs 2 to 6 %.
    acc = arrived(acc, decay, v)
    v.free(before % v.SLOTS)
    p = as_operand(p32, v)
    if not (a.RESCALE_THRESHOLD or a.E4M3):  # `arrived` does it
        acc = scaled(acc, new_decay, v)
    return acc, p, row_max, row_sum, new_decay


@gluon.jit
def skip(pipes, block, count, ME: gl.constexpr):
    """Hands back blocks that other warpgroups of the tile need, and this one does not."""
    k, v, turns = pipes.k, pipes.v, pipes.turns
    for _ in range(0, count):
        turns.wait(block, ME)
        turns.give(ME)
        k.wait(block % k.SLOTS, block // k.SLOTS)
        k.free(block % k.SLOTS)
        v.wait(block % v.SLOTS, block // v.SLOTS)
        v.free(block % v.SLOTS)
        block += 1
    return block


# ------------------------------------------------------------------------------------- the output


@gluon.jit
def write_lse(a, lse_ptr, row, row_max, row_sum):
    """Writes logsumexp of 64 rows; returns 1 / row_sum, 0 for a row that saw no key."""
    row_sum = whole_row_sum(row_sum, a.BLOCK_N, a.DEFER_ROW_SUM)
    seen = row_sum != 0.0  # NaN stays NaN
    rows, heads = a.rows(row, row_layout(a.BLOCK_N))
    lse = gl.where(seen, (row_max + gl.log2(row_sum)) * LN_2, -float("inf"))
    if a.PACK_GQA > 1:
        lse_ptr += heads * a.seqlen_q
    gl.store(lse_ptr + rows, lse, mask=rows < a.seqlen_q)
    return gl.where(seen, 1.0 / row_sum, 0.0)


@gluon.jit
def write_out(a, out, pipes, slot, o_descs, o_tiles, place, row, ME: gl.constexpr):
    """Sends 64 finished rows to memory by TMA, which leaves out the rows beyond seqlen_q."""
    out, rest = out
    q, v = pipes.q, pipes.v
    o_desc, o_rest_desc = o_descs
    dtype: gl.constexpr = o_desc.dtype
    COLUMNS: gl.constexpr = out.shape[1]
    if a.EPILOGUE_SUBTILE == 0:
        q.matrix(slot).store(out.to(dtype))
        if v.REST:
            q.rest(slot).store(rest.to(dtype))
        fence_async_shared()
        copy_out(o_desc, at(place, row, 0), q.tiles.index(slot))
        if v.REST:
            copy_out(o_rest_desc, at(place, row, COLUMNS), q.rests.index(slot))
        if a.Q_STAGES == 1:
            tma.store_wait(0)
            q.free(slot)
    elif a.EPILOGUE_SUBTILE == 1:
        tile, rest_tile = o_tiles
        send_part(out.to(dtype), o_desc, tile.index(ME), place, row, 0)
        if v.REST:
            send_part(rest.to(dtype), o_rest_desc, rest_tile.index(ME), place, row, COLUMNS)
    else:
        half: gl.constexpr = wgmma_layout(COLUMNS // 2)
        left, right = out.to(dtype).reshape([64, 2, COLUMNS // 2]).permute((0, 2, 1)).split()
        tile, _ = o_tiles
        send_part(gl.convert_layout(left, half), o_desc, tile.index(ME), place, row, 0)
        right = gl.convert_layout(right, half)
        send_part(right, o_desc, tile.index(ME), place, row, COLUMNS // 2)


@gluon.jit
def send_part(part, o_desc, tile, place, row, column):
    """Sends columns of the output through a buffer, once what it held before has left."""
    tma.store_wait(0)
    barrier()
    as_matrix(tile).store(part)
    fence_async_shared()
    copy_out(o_desc, at(place, row, column), tile)
