"""FlashAttention forward for Hopper in Gluon: warp-specialised, persistent, TMA and WGMMA.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

Algorithm: Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and
Low-precision", arXiv:2407.08608. One program runs on each SM and works through tiles of
64 * WARPGROUPS query rows of one head. Its producer warp copies Q once and K and V in blocks of
BLOCK_N keys, from the last visible block to the first; each consumer warpgroup owns 64 rows.
A consumer issues the scores of a block together with the output of the block before, and computes
the softmax of the one while the other is still being multiplied.

Choices beyond the paper:
* which program works on which tile is a table from the host, longest tiles first, each to the
  program with the least work so far: no atomic counter, the same order every time;
* a warpgroup skips the blocks above its own diagonal, although others of the tile need them;
* the output leaves through the buffer that the tile's queries came in, by TMA, while the next
  tile's queries arrive in another.

Causal means bottom-right aligned (FlashAttention >= 2.1): query i sees keys j <= i + seqlen_k -
seqlen_q, with a window only the last `window` of them. A row that sees no key gives out = 0 and
lse = -inf.

What each parameter trades:
    WARPGROUPS   rows per tile against registers per thread
    BLOCK_N      fewer, longer steps against registers and shared memory
    STAGES       blocks of K and of V in flight against shared memory
    Q_STAGES     2: the next tile's queries arrive early, for shared memory
    O_PARTS      0: the output leaves through the queries' buffer; 1, 2: through one of its own, in
                 as many trips
    PING_PONG    1: consumers take turns at the tensor cores
    LANE_SUM     1: row sums stay spread over lanes until the end of a tile
    SECTION_MB   causal: heads whose K and V fill so much of the L2 are worked on together
"""

import functools
import heapq
import math

import numpy as np
import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from tunefa.kernels.gluon_api import aggregate, barrier, copy_out
from tunefa.kernels.hopper import (
    Ring,
    Turns,
    new_barriers,
    new_ring,
    no_row_sum,
    online_softmax,
    operand_layout,
    row_layout,
    wgmma_layout,
    whole_row_sum,
)

LOG2_E = math.log2(math.e)
LN_2 = gl.constexpr(math.log(2.0))


# ---------------------------------------------------------------------------- what there is to do


@aggregate
class Attention:
    """One launch: sizes, known when it runs, and the tile, known when it is compiled."""

    heads: gl.tensor
    seqlen_q: gl.tensor
    seqlen_k: gl.tensor
    window: gl.tensor
    scale_log2: gl.tensor
    WARPGROUPS: gl.constexpr
    BLOCK_N: gl.constexpr
    Q_STAGES: gl.constexpr
    O_PARTS: gl.constexpr
    LANE_SUM: gl.constexpr
    HALF_DIAGONAL: gl.constexpr
    CAUSAL: gl.constexpr
    WINDOWED: gl.constexpr
    RAGGED: gl.constexpr

    @gluon.constexpr_function
    def __init__(
        self, sizes, WARPGROUPS, BLOCK_N, Q_STAGES, O_PARTS, LANE_SUM, HALF_DIAGONAL,
        CAUSAL, WINDOWED, RAGGED,
    ):  # fmt: skip
        self.heads, self.seqlen_q, self.seqlen_k = sizes[0], sizes[1], sizes[2]
        self.window, self.scale_log2 = sizes[3], sizes[4]
        self.WARPGROUPS, self.BLOCK_N = gl.constexpr(WARPGROUPS), gl.constexpr(BLOCK_N)
        self.Q_STAGES, self.O_PARTS = gl.constexpr(Q_STAGES), gl.constexpr(O_PARTS)
        self.LANE_SUM, self.HALF_DIAGONAL = gl.constexpr(LANE_SUM), gl.constexpr(HALF_DIAGONAL)
        self.CAUSAL, self.WINDOWED = gl.constexpr(CAUSAL), gl.constexpr(WINDOWED)
        self.RAGGED = gl.constexpr(RAGGED)

    @gluon.jit
    def blocks(self, row, ROWS: gl.constexpr):
        """[begin, end) of the key blocks that the query rows [row, row + ROWS) see, at least one."""
        BLOCK_N: gl.constexpr = self.BLOCK_N
        end = (self.seqlen_k + BLOCK_N - 1) // BLOCK_N
        offset = self.seqlen_k - self.seqlen_q
        if self.CAUSAL:
            seen = gl.minimum(row + ROWS, self.seqlen_q) + offset
            end = gl.maximum((seen + BLOCK_N - 1) // BLOCK_N, 1)
        begin = 0
        if self.WINDOWED:
            first = gl.maximum(row + offset - self.window + 1, 0)
            begin = gl.minimum(first // BLOCK_N, end - 1)
        return begin, end

    @gluon.jit
    def crosses(self, row, key_block):
        """Whether some of 64 rows do not see some key of a block."""
        key = key_block * self.BLOCK_N
        last = self.seqlen_k - 1
        if self.CAUSAL:
            last = gl.minimum(last, row + self.seqlen_k - self.seqlen_q)
        crosses = key + self.BLOCK_N - 1 > last
        if self.WINDOWED:
            crosses = crosses | (key <= row + 63 + self.seqlen_k - self.seqlen_q - self.window)
        return crosses

    @gluon.jit
    def masked(self, s, row, key):
        """Scores of 64 rows from `row` and keys from `key`, -inf where a row does not see a key."""
        layout: gl.constexpr = s.type.layout
        keys = key + gl.arange(0, s.shape[1], gl.SliceLayout(0, layout))
        if self.CAUSAL:
            rows = row + gl.arange(0, 64, gl.SliceLayout(1, layout))
            diagonal = rows + (self.seqlen_k - self.seqlen_q)
            last = gl.minimum(diagonal, self.seqlen_k - 1)
            seen = keys[None, :] <= last[:, None]
            if self.WINDOWED:
                seen = seen & (keys[None, :] > (diagonal - self.window)[:, None])
            s = gl.where(seen, s, -float("inf"))
        else:
            s = gl.where(keys[None, :] < self.seqlen_k, s, -float("inf"))
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

    @gluon.constexpr_function
    def __init__(self, q, k, v, turns, schedule, tiles):
        self.q, self.k, self.v, self.turns = q, k, v, turns
        self.schedule, self.tiles = schedule, tiles


@gluon.jit
def first_and_count(schedule):
    """Where the tiles of this program begin in the schedule, and how many there are."""
    program = gl.program_id(0)
    first = gl.load(schedule + program)
    return first, gl.load(schedule + program + 1) - first


@gluon.jit
def scheduled(schedule, i):
    """(batch, query head, KV head, first query row) of tile number i: no division on the device."""
    entry = schedule + i * 4
    return gl.load(entry), gl.load(entry + 1), gl.load(entry + 2), gl.load(entry + 3)


# ----------------------------------------------------------------------------------- the producer


@gluon.jit
def producer(attention, pipes, q_desc, k_desc, v_desc):
    """One warp: Q of each tile, then K and V of its blocks from the last to the first."""
    q, k, v = pipes.q, pipes.k, pipes.v
    WARPGROUPS: gl.constexpr = attention.WARPGROUPS
    first, count = first_and_count(pipes.schedule)
    tile = scheduled(pipes.tiles, first)
    loaded = 0
    for turn in range(0, count):
        batch, head, head_kv, row = tile
        tile = scheduled(pipes.tiles, first + turn + 1)  # long before it is needed
        begin, end = attention.blocks(row, 64 * WARPGROUPS)
        stage = turn % attention.Q_STAGES
        for me in gl.static_range(WARPGROUPS):
            slot = stage * WARPGROUPS + me
            q.fill(slot, turn // attention.Q_STAGES, q_desc, batch, head, row + 64 * me)
            if me == 0:  # the first scores need no more than this
                key = (end - 1) * attention.BLOCK_N
                k.fill(loaded % k.SLOTS, loaded // k.SLOTS, k_desc, batch, head_kv, key)
        for block in range(1, end - begin):
            key = (end - 1 - block) * attention.BLOCK_N
            before = key + attention.BLOCK_N
            v.fill(loaded % v.SLOTS, loaded // v.SLOTS, v_desc, batch, head_kv, before)
            loaded += 1
            k.fill(loaded % k.SLOTS, loaded // k.SLOTS, k_desc, batch, head_kv, key)
        key = begin * attention.BLOCK_N
        v.fill(loaded % v.SLOTS, loaded // v.SLOTS, v_desc, batch, head_kv, key)
        loaded += 1


# ---------------------------------------------------------------------------------- the consumers


@gluon.jit
def scores(q_tile, k, block):
    """Starts q @ k^T for a block that has arrived."""
    k_tile = k.matrix(block % k.SLOTS)
    N: gl.constexpr = k_tile.shape[0]
    zeros = gl.zeros([64, N], gl.float32, wgmma_layout(N))
    return warpgroup_mma(q_tile, k_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def as_operand(p, v):
    """Probabilities in the registers and the dtype in which they enter p @ v."""
    columns: gl.constexpr = v.tiles.shape[4]
    dtype: gl.constexpr = v.tiles.dtype
    layout: gl.constexpr = operand_layout(columns, dtype.primitive_bitwidth)
    return gl.convert_layout(p.to(dtype), layout)


@gluon.jit
def first_block(a, pipes, q_tile, block, row, key_block, ME: gl.constexpr):
    """Scores and softmax of a tile's first block: (p, row_max, row_sum)."""
    N: gl.constexpr = a.BLOCK_N
    if a.CAUSAL and a.HALF_DIAGONAL:
        seen = row + 64 + a.seqlen_k - a.seqlen_q
        if seen <= key_block * N + N // 2:  # the rest of the block is above the diagonal
            p, row_max, row_sum = masked_start(a, pipes, q_tile, block, row, key_block, N // 2, ME)
            p = widened(p, N)
            row_max = gl.convert_layout(row_max, row_layout(N), assert_trivial=True)
            if not a.LANE_SUM:
                row_sum = gl.convert_layout(row_sum, row_layout(N), assert_trivial=True)
        else:
            p, row_max, row_sum = masked_start(a, pipes, q_tile, block, row, key_block, N, ME)
    else:
        p, row_max, row_sum = masked_start(a, pipes, q_tile, block, row, key_block, N, ME)
    return p, row_max, row_sum


@gluon.jit
def masked_start(a, pipes, q_tile, block, row, key_block, N: gl.constexpr, ME: gl.constexpr):
    """`first_block` of the first N keys of it."""
    k = pipes.k
    GUARD: gl.constexpr = a.CAUSAL and a.RAGGED
    k_tile = k.matrix(block % k.SLOTS).slice(0, N)
    zeros = gl.zeros([64, N], gl.float32, wgmma_layout(N))
    s_token = warpgroup_mma(q_tile, k_tile.permute((1, 0)), zeros, use_acc=False, is_async=True)
    pipes.turns.give(ME)
    s = warpgroup_mma_wait(0, [s_token])
    k.free(block % k.SLOTS)
    if a.CAUSAL or a.RAGGED:
        s = a.masked(s, row, key_block * a.BLOCK_N)
    row_max = gl.full([64], -float("inf"), gl.float32, row_layout(N))
    row_sum = no_row_sum(N, a.LANE_SUM)
    p, row_max, row_sum, _ = online_softmax(
        s, row_max, row_sum, a.scale_log2, GUARD, a.LANE_SUM
    )
    return p, row_max, row_sum


@gluon.jit
def widened(p, N: gl.constexpr):
    """(64, N // 2) as (64, N) with zeros on the right, which moves no register."""
    wide = gl.join(p, gl.zeros_like(p)).permute((0, 2, 1)).reshape([64, N])
    return gl.convert_layout(wide, wgmma_layout(N), assert_trivial=True)


@gluon.jit
def step(a, pipes, q_tile, state, block, row, key_block, ME: gl.constexpr):
    """Scores and softmax of a block, number `block` of all, and p @ v of the one before."""
    GUARD: gl.constexpr = a.CAUSAL and a.RAGGED
    acc, p, row_max, row_sum = state
    k, v, turns = pipes.k, pipes.v, pipes.turns
    k.wait(block % k.SLOTS, block // k.SLOTS)
    turns.wait(block, ME)
    s_token = scores(q_tile, k, block)
    before = block - 1
    v.wait(before % v.SLOTS, before // v.SLOTS)
    acc_token = warpgroup_mma(p, v.matrix(before % v.SLOTS), acc, is_async=True)
    turns.give(ME)
    s = warpgroup_mma_wait(1, [s_token])
    k.free(block % k.SLOTS)
    if GUARD:
        if a.crosses(row, key_block):
            s = a.masked(s, row, key_block * a.BLOCK_N)
    p32, row_max, row_sum, decay = online_softmax(
        s, row_max, row_sum, a.scale_log2, GUARD, a.LANE_SUM
    )
    # ptxas moves most exponentials below this wait. Forbidding that costs 2 to 6 %.
    acc = warpgroup_mma_wait(0, [acc_token])
    v.free(before % v.SLOTS)
    p = as_operand(p32, v)
    acc = acc * gl.convert_layout(decay, row_layout(acc.shape[1]))[:, None]
    return acc, p, row_max, row_sum


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


@gluon.jit
def consumer(attention, pipes, o_desc, o_tiles, lse_ptr, ME: gl.constexpr):
    """One warpgroup: 64 rows of each tile."""
    a, q, k, v, turns = attention, pipes.q, pipes.k, pipes.v, pipes.turns
    N: gl.constexpr = a.BLOCK_N
    D_V: gl.constexpr = v.tiles.shape[4]
    first, count = first_and_count(pipes.schedule)
    tile = scheduled(pipes.tiles, first)
    block = 0  # counts those that went through the rings, over all tiles
    for turn in range(0, count):
        batch, head, head_kv, tile_row = tile
        tile = scheduled(pipes.tiles, first + turn + 1)
        row = tile_row + 64 * ME
        tile_begin, tile_end = a.blocks(tile_row, 64 * a.WARPGROUPS)
        begin, end = a.blocks(row, 64)
        if a.CAUSAL:
            block = skip(pipes, block, tile_end - end, ME)

        slot = (turn % a.Q_STAGES) * a.WARPGROUPS + ME
        q_tile = q.matrix(slot)
        q.wait(slot, turn // a.Q_STAGES)
        k.wait(block % k.SLOTS, block // k.SLOTS)
        turns.wait(block, ME)
        p32, row_max, row_sum = first_block(a, pipes, q_tile, block, row, end - 1, ME)
        p = as_operand(p32, v)
        acc = gl.zeros([64, D_V], gl.float32, wgmma_layout(D_V))
        if a.O_PARTS == 0 and a.Q_STAGES > 1:
            if turn > 0:  # the output of the tile before has left its buffer
                tma.store_wait(0)
                q.free(((turn - 1) % a.Q_STAGES) * a.WARPGROUPS + ME)
        block += 1

        state = (acc, p, row_max, row_sum)
        for j in range(0, end - 1 - begin):
            state = step(a, pipes, q_tile, state, block, row, end - 2 - j, ME)
            block += 1
        acc, p, row_max, row_sum = state

        if a.O_PARTS > 0:
            q.free(slot)
        before = block - 1
        v.wait(before % v.SLOTS, before // v.SLOTS)
        acc = warpgroup_mma(p, v.matrix(before % v.SLOTS), acc, is_async=True)
        acc = warpgroup_mma_wait(0, [acc])
        v.free(before % v.SLOTS)
        if a.WINDOWED:
            block = skip(pipes, block, begin - tile_begin, ME)

        row_sum = whole_row_sum(row_sum, N, a.LANE_SUM)
        rows = row + gl.arange(0, 64, row_layout(N))
        lse = gl.where(row_sum > 0.0, (row_max + gl.log2(row_sum)) * LN_2, -float("inf"))
        lse_rows = lse_ptr + (batch * a.heads + head).to(gl.int64) * a.seqlen_q + rows
        gl.store(lse_rows, lse, mask=rows < a.seqlen_q)
        share = gl.where(row_sum > 0.0, 1.0 / row_sum, 0.0)
        out = acc * gl.convert_layout(share, row_layout(D_V))[:, None]
        write_out(a, out.to(o_desc.dtype), pipes.q, slot, o_desc, o_tiles, batch, head, row, ME)
    tma.store_wait(0)


@gluon.jit
def write_out(a, out, q, slot, o_desc, o_tiles, batch, head, row, ME: gl.constexpr):
    """Sends 64 finished rows to memory by TMA, which leaves out the rows beyond seqlen_q."""
    D_V: gl.constexpr = out.shape[1]
    if a.O_PARTS == 0:
        q.matrix(slot).store(out)
        fence_async_shared()
        copy_out(o_desc, [batch, head, row, 0], q.tiles.index(slot))
        if a.Q_STAGES == 1:
            tma.store_wait(0)
            q.free(slot)
    elif a.O_PARTS == 1:
        send_part(out, o_desc, o_tiles.index(ME), batch, head, row, 0)
    else:
        half: gl.constexpr = wgmma_layout(D_V // 2)
        left, right = out.reshape([64, 2, D_V // 2]).permute((0, 2, 1)).split()
        tile = o_tiles.index(ME)
        send_part(gl.convert_layout(left, half), o_desc, tile, batch, head, row, 0)
        send_part(gl.convert_layout(right, half), o_desc, tile, batch, head, row, D_V // 2)


@gluon.jit
def send_part(part, o_desc, tile, batch, head, row, column):
    """Sends columns of the output through a buffer, once what it held before has left."""
    tma.store_wait(0)
    barrier()
    tile.reshape([part.shape[0], part.shape[1]]).store(part)
    fence_async_shared()
    copy_out(o_desc, [batch, head, row, column], tile)


# ------------------------------------------------------------------------------------- the kernel


@gluon.jit
def attention_fwd(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, schedule_ptr, tiles_ptr,
    heads, seqlen_q, seqlen_k, window, scale_log2,
    WARPGROUPS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, Q_STAGES: gl.constexpr,
    O_PARTS: gl.constexpr, PING_PONG: gl.constexpr, LANE_SUM: gl.constexpr,
    HALF_DIAGONAL: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, RAGGED: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Works through the tiles that the schedule gives to this program."""
    sizes = (heads, seqlen_q, seqlen_k, window, scale_log2)
    a = Attention(
        sizes, WARPGROUPS, BLOCK_N, Q_STAGES, O_PARTS, LANE_SUM, HALF_DIAGONAL,
        CAUSAL, WINDOWED, RAGGED,
    )  # fmt: skip
    q = new_ring(q_desc, Q_STAGES * WARPGROUPS, 1)
    k = new_ring(k_desc, STAGES, WARPGROUPS)
    v = new_ring(v_desc, STAGES, WARPGROUPS)
    if O_PARTS > 0:
        shape: gl.constexpr = [WARPGROUPS] + o_desc.block_type.shape
        o_tiles = gl.allocate_shared_memory(o_desc.dtype, shape, o_desc.layout)
    else:
        o_tiles = q.tiles
    turns = Turns(new_barriers(WARPGROUPS, 1), WARPGROUPS, PING_PONG)
    pipes = Pipes(q, k, v, turns, schedule_ptr, tiles_ptr)
    R: gl.constexpr = CONSUMER_REGISTERS
    P: gl.constexpr = PRODUCER_REGISTERS
    if WARPGROUPS == 1:
        gl.warp_specialize([
            (consumer, (a, pipes, o_desc, o_tiles, lse_ptr, 0)),
            (producer, (a, pipes, q_desc, k_desc, v_desc)),
        ], [1], [P])  # fmt: skip
    elif WARPGROUPS == 2:
        gl.warp_specialize([
            (consumer, (a, pipes, o_desc, o_tiles, lse_ptr, 0)),
            (consumer, (a, pipes, o_desc, o_tiles, lse_ptr, 1)),
            (producer, (a, pipes, q_desc, k_desc, v_desc)),
        ], [4, 1], [R, P])  # fmt: skip
    elif WARPGROUPS == 3:
        gl.warp_specialize([
            (consumer, (a, pipes, o_desc, o_tiles, lse_ptr, 0)),
            (consumer, (a, pipes, o_desc, o_tiles, lse_ptr, 1)),
            (consumer, (a, pipes, o_desc, o_tiles, lse_ptr, 2)),
            (producer, (a, pipes, q_desc, k_desc, v_desc)),
        ], [4, 4, 1], [R, R, P])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (a, pipes, o_desc, o_tiles, lse_ptr, 0)),
            (consumer, (a, pipes, o_desc, o_tiles, lse_ptr, 1)),
            (consumer, (a, pipes, o_desc, o_tiles, lse_ptr, 2)),
            (consumer, (a, pipes, o_desc, o_tiles, lse_ptr, 3)),
            (producer, (a, pipes, q_desc, k_desc, v_desc)),
        ], [4, 4, 4, 1], [R, R, R, P])  # fmt: skip


# -------------------------------------------------------------------------------------- host side

_REGISTERS = {1: (240, 24, 255), 2: (240, 24, 168), 3: (160, 32, 128), 4: (112, 24, 96)}
"""By WARPGROUPS: registers per thread of a consumer, of the producer, and of the launch before
setmaxnreg moves them between the two: 65,536 in all."""
_TILE_COST = 0.5
"""What a tile costs beside its blocks, in blocks: queries in, output out."""
_GLUON_TYPES = {"bf16": gl.bfloat16, "fp16": gl.float16}


def _blocks(workload, config):
    """(rows, columns) of the tiles of q, k, v and out."""
    pad_d, pad_dv = _padded(workload.head_dim), _padded(workload.head_dim_v)
    o_columns = pad_dv // max(1, config["O_PARTS"])
    n = config["BLOCK_N"]
    return (64, pad_d), (n, pad_d), (n, pad_dv), (64, o_columns)


def _padded(head_dim):
    return max(64, triton.next_power_of_2(head_dim))


def _layout(dtype, rows, columns):
    return gl.NVMMASharedLayout.get_default_for([1, 1, rows, columns], _GLUON_TYPES[dtype])


def _constants(workload, config):
    consumer_registers, producer_registers, _ = _REGISTERS[config["WARPGROUPS"]]
    names = ("WARPGROUPS", "BLOCK_N", "STAGES", "Q_STAGES", "O_PARTS", "PING_PONG", "LANE_SUM",
             "HALF_DIAGONAL")  # fmt: skip
    return {
        **{name: config[name] for name in names},
        "CAUSAL": workload.causal,
        "WINDOWED": workload.window is not None,
        "RAGGED": _is_ragged(workload, config),
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }


def _is_ragged(workload, config):
    """Whether more than a tile's first block may need a mask, or a row may see no key."""
    if not workload.causal:
        return workload.seqlen_k % config["BLOCK_N"] != 0
    offset = workload.seqlen_k - workload.seqlen_q
    return workload.window is not None or offset < 0 or offset % 64 != 0


def variant(workload, config, aligned=True):
    """What the compiler needs for one config, with no device present: a plain dict.

    The compiled kernel depends on no batch, head count or length. TMA reads `aligned` tensors only.
    """
    constants = _constants(workload, config)
    kind = workload.dtype
    types = {"lse_ptr": "*fp32", "scale_log2": "fp32"}
    types |= {"schedule_ptr": "*i32", "tiles_ptr": "*i32"}
    for name, (rows, columns) in zip("qkvo", _blocks(workload, config), strict=True):
        layout = _layout(kind, rows, columns)
        types[f"{name}_desc"] = f"tensordesc<{kind}[1, 1, {rows}, {columns}],{layout!r}>"
    types |= dict.fromkeys(constants, "constexpr")
    return {
        "function": attention_fwd,
        "signature": {name: types.get(name, "i32") for name in attention_fwd.arg_names},
        "constants": constants,
        "aligned": ["lse_ptr", "schedule_ptr", "tiles_ptr"],
        "options": {"num_warps": 4, "maxnreg": _REGISTERS[config["WARPGROUPS"]][2]},
    }


def is_aligned(tensors):
    """Whether TMA may read these tensors: 16-byte multiples (CUDA C++ Programming Guide, "Tensor
    Map")."""
    return all(
        tensor.data_ptr() % 16 == 0
        and all(step * tensor.element_size() % 16 == 0 for step in tensor.stride()[:3])
        for tensor in tensors[:4]
    )


def arguments(tensors, workload, config, scale):
    """The grid and the kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse): q, out (batch, heads, seqlen_q, head_dim | head_dim_v); k, v
    (batch, heads_kv, seqlen_k, head_dim | head_dim_v), aligned, rows contiguous; lse (batch, heads,
    seqlen_q), fp32, contiguous. `scale` multiplies q @ k^T and is positive.
    """
    descriptors = []
    for tensor, (rows, columns) in zip(tensors[:4], _blocks(workload, config), strict=True):
        layout = _layout(workload.dtype, rows, columns)
        block = [1, 1, rows, columns]
        descriptors.append(TensorDescriptor(tensor, tensor.shape, tensor.stride(), block, layout))
    lse, w = tensors[4], workload
    schedule, tiles = _tables(w, tuple(sorted(config.items())), lse.device)
    sizes = [w.heads, w.seqlen_q, w.seqlen_k, w.window or 0, scale * LOG2_E]
    constants = _constants(w, config).values()
    return (len(schedule) - 1, 1, 1), [*descriptors, lse, schedule, tiles, *sizes, *constants]


@functools.lru_cache(maxsize=1024)
def _tables(workload, config_items, device):
    """(schedule, tiles): the tiles of program i are rows schedule[i] to schedule[i + 1] of `tiles`,
    each (batch, query head, KV head, first query row); one row more is read, and not used."""
    config = dict(config_items)
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    lists = schedule(workload, config, sms)
    ends = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    order = np.array([tile for tiles in lists for tile in tiles] + [0])
    head, tile = np.divmod(order, triton.cdiv(workload.seqlen_q, 64 * config["WARPGROUPS"]))
    batch, head = np.divmod(head, workload.heads)
    rows = np.stack([batch, head, head // workload.group, tile * 64 * config["WARPGROUPS"]], axis=1)
    return (
        torch.from_numpy(ends).to(device),
        torch.from_numpy(rows.astype(np.int32)).to(device),
    )


def schedule(workload, config, sms):
    """The tiles of each program: lists of tile + tiles per head * (query heads of all batches).

    Longest processing time first (Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J.
    Appl. Math. 17(2), 1969) inside sections of heads whose K and V the L2 cache holds together.
    """
    rows = 64 * config["WARPGROUPS"]
    tiles, heads = triton.cdiv(workload.seqlen_q, rows), workload.batch * workload.heads
    programs = min(tiles * heads, sms)
    lists = [[] for _ in range(programs)]
    if not workload.causal:
        programs = triton.cdiv(tiles * heads, triton.cdiv(tiles * heads, programs))
        return [list(range(i, tiles * heads, programs)) for i in range(programs)]
    kv_bytes = 2 * workload.seqlen_k * (workload.head_dim + workload.head_dim_v)
    section = max(1, int(config["SECTION_MB"] * 2**20 / kv_bytes)) * workload.group
    cost = [_tile_cost(workload, config, rows, tile) for tile in range(tiles)]
    order = sorted(range(tiles), key=lambda tile: -cost[tile])
    heap = [(0.0, i) for i in range(programs)]
    for start in range(0, heads, section):
        for tile in order:
            for head in range(start, min(heads, start + section)):
                busy, i = heapq.heappop(heap)
                lists[i].append(tile + head * tiles)
                heapq.heappush(heap, (busy + cost[tile], i))
    return lists


def _tile_cost(workload, config, rows, tile):
    """Blocks of a tile, and what it costs beside them."""
    n, offset = config["BLOCK_N"], workload.seqlen_k - workload.seqlen_q
    seen = min(rows * (tile + 1), workload.seqlen_q) + offset
    first = 0
    if workload.window is not None:
        first = max(0, rows * tile + offset - workload.window + 1) // n
    return _TILE_COST + max(1, triton.cdiv(max(seen, 1), n) - first)
