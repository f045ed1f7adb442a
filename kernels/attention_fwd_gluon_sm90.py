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
  program with the least work so far: no atomic counter, the same order every time; that of packed
  sequences is made on the device;
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
    HALF_DIAGONAL  1: of a causal tile's first block, only the half that can be seen is multiplied
    SECTION_MB   causal: heads whose K and V fill so much of the L2 are worked on together
"""

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from tunefa.kernels.gluon import packed_tiles, tile_table, tma_blocks
from tunefa.kernels.gluon.forward import (
    Attention,
    Pipes,
    first_block,
    skip,
    step,
    write_lse,
    write_out,
)
from tunefa.kernels.gluon.hopper import Turns, new_barriers, new_ring, new_tiles
from tunefa.kernels.gluon.products import arrived, as_operand, no_output, outputs, scaled
from tunefa.kernels.gluon.tiles import first_and_count, scheduled

LOG2_E = math.log2(math.e)
is_aligned = tma_blocks.is_aligned
prologue, scratch = packed_tiles.prologue, packed_tiles.scratch
prologue_arguments = packed_tiles.prologue_arguments


# ----------------------------------------------------------------------------------- the producer


@gluon.jit
def producer(attention, pipes, q_descs, k_descs, v_descs):
    """One warp: Q of each tile, then K and V of its blocks from the last to the first."""
    q, k, v = pipes.q, pipes.k, pipes.v
    WARPGROUPS: gl.constexpr = attention.WARPGROUPS
    first, count = first_and_count(pipes.schedule)
    tile = scheduled(attention, pipes.tiles, first)
    loaded = 0
    for turn in range(0, count):
        a, row = attention.of(tile), tile.row
        queries, keys = tile.queries(), tile.keys()
        tile = scheduled(a, pipes.tiles, first + turn + 1)  # long before it is needed
        begin, end = a.blocks(row, 64 * WARPGROUPS)
        stage = turn % attention.Q_STAGES
        for me in gl.static_range(WARPGROUPS):
            slot = stage * WARPGROUPS + me
            q.fill(slot, turn // attention.Q_STAGES, q_descs, queries, row + 64 * me)
            if me == 0:  # the first scores need no more than this
                key = (end - 1) * attention.BLOCK_N
                k.fill(loaded % k.SLOTS, loaded // k.SLOTS, k_descs, keys, key)
        for block in range(1, end - begin):
            key = (end - 1 - block) * attention.BLOCK_N
            before = key + attention.BLOCK_N
            v.fill(loaded % v.SLOTS, loaded // v.SLOTS, v_descs, keys, before)
            loaded += 1
            k.fill(loaded % k.SLOTS, loaded // k.SLOTS, k_descs, keys, key)
        key = begin * attention.BLOCK_N
        v.fill(loaded % v.SLOTS, loaded // v.SLOTS, v_descs, keys, key)
        loaded += 1


# ---------------------------------------------------------------------------------- the consumers


@gluon.jit
def consumer(attention, pipes, o_descs, o_tiles, lse_ptr, ME: gl.constexpr):
    """One warpgroup: 64 rows of each tile."""
    q = pipes.q
    first, count = first_and_count(pipes.schedule)
    tile = scheduled(attention, pipes.tiles, first)
    block = 0  # counts those that went through the rings, over all tiles
    for turn in range(0, count):
        a, here, tile_row = attention.of(tile), tile, tile.row
        tile = scheduled(a, pipes.tiles, first + turn + 1)
        row = tile_row + 64 * ME
        tile_begin, tile_end = a.blocks(tile_row, 64 * a.WARPGROUPS)
        begin, end = a.blocks(row, 64)
        if a.CAUSAL:
            block = skip(pipes, block, tile_end - end, ME)
        slot = (turn % a.Q_STAGES) * a.WARPGROUPS + ME
        q.wait(slot, turn // a.Q_STAGES)
        acc, row_max, row_sum, block = attend(a, pipes, turn, slot, block, row, begin, end, ME)
        if a.WINDOWED:
            block = skip(pipes, block, begin - tile_begin, ME)
        rows_before = attention.rows_before(here)
        share = write_lse(a, lse_ptr + rows_before, row, row_max, row_sum)
        out = scaled(acc, share, pipes.v)
        write_out(a, out, pipes, slot, o_descs, o_tiles, here.queries(), row, ME)
    tma.store_wait(0)


@gluon.jit
def attend(a, pipes, turn, slot, block, row, begin, end, ME: gl.constexpr):
    """64 rows past the key blocks [begin, end): (sum of p @ v, row_max, row_sum, next block)."""
    q, k, v = pipes.q, pipes.k, pipes.v
    k.wait(block % k.SLOTS, block // k.SLOTS)
    pipes.turns.wait(block, ME)
    p32, row_max, row_sum = first_block(a, pipes, slot, block, row, end - 1, ME)
    p = as_operand(p32, v)
    acc = no_output(v)
    if a.O_PARTS == 0 and a.Q_STAGES > 1:
        if turn > 0:  # the output of the tile before has left its buffer
            tma.store_wait(0)
            q.free(((turn - 1) % a.Q_STAGES) * a.WARPGROUPS + ME)
    block += 1
    state = (acc, p, row_max, row_sum)
    for j in range(0, end - 1 - begin):
        state = step(a, pipes, slot, state, block, row, end - 2 - j, ME)
        block += 1
    acc, p, row_max, row_sum = state
    if a.O_PARTS > 0:
        q.free(slot)
    before = block - 1
    v.wait(before % v.SLOTS, before // v.SLOTS)
    acc = arrived(outputs(p, v, before % v.SLOTS, acc), v)
    v.free(before % v.SLOTS)
    return acc, row_max, row_sum, block


# ------------------------------------------------------------------------------------- the kernel


@gluon.jit
def attention_fwd(
    q_desc, k_desc, v_desc, o_desc, q_rest_desc, k_rest_desc, v_rest_desc, o_rest_desc,
    lse_ptr, schedule_ptr, tiles_ptr,
    heads, seqlen_q, seqlen_k, window, scale_log2,
    WARPGROUPS: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, Q_STAGES: gl.constexpr,
    O_PARTS: gl.constexpr, PING_PONG: gl.constexpr, LANE_SUM: gl.constexpr,
    HALF_DIAGONAL: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, RAGGED: gl.constexpr, VARLEN: gl.constexpr,
    REST: gl.constexpr, REST_V: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Works through the tiles that the schedule gives to this program."""
    sizes = (heads, seqlen_q, seqlen_k, window, scale_log2)
    a = Attention(
        sizes, WARPGROUPS, BLOCK_N, Q_STAGES, O_PARTS, LANE_SUM, HALF_DIAGONAL,
        CAUSAL, WINDOWED, RAGGED, VARLEN,
    )  # fmt: skip
    q_descs, k_descs, v_descs = (q_desc, q_rest_desc), (k_desc, k_rest_desc), (v_desc, v_rest_desc)
    o_descs = (o_desc, o_rest_desc)
    q = new_ring(q_descs, REST, Q_STAGES * WARPGROUPS, 1)
    k = new_ring(k_descs, REST, STAGES, WARPGROUPS)
    v = new_ring(v_descs, REST_V, STAGES, WARPGROUPS)
    o_tiles = (q.tiles, q.tiles)
    if O_PARTS > 0:
        o_tile = new_tiles(o_desc, WARPGROUPS)
        o_rest_tile = o_tile
        if REST_V:
            o_rest_tile = new_tiles(o_rest_desc, WARPGROUPS)
        o_tiles = (o_tile, o_rest_tile)
    turns = Turns(new_barriers(WARPGROUPS, 1), WARPGROUPS, PING_PONG)
    pipes = Pipes(q, k, v, turns, schedule_ptr, tiles_ptr)
    R: gl.constexpr = CONSUMER_REGISTERS
    P: gl.constexpr = PRODUCER_REGISTERS
    if WARPGROUPS == 1:
        gl.warp_specialize([
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, 0)),
            (producer, (a, pipes, q_descs, k_descs, v_descs)),
        ], [1], [P])  # fmt: skip
    elif WARPGROUPS == 2:
        gl.warp_specialize([
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, 0)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, 1)),
            (producer, (a, pipes, q_descs, k_descs, v_descs)),
        ], [4, 1], [R, P])  # fmt: skip
    elif WARPGROUPS == 3:
        gl.warp_specialize([
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, 0)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, 1)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, 2)),
            (producer, (a, pipes, q_descs, k_descs, v_descs)),
        ], [4, 4, 1], [R, R, P])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, 0)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, 1)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, 2)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, 3)),
            (producer, (a, pipes, q_descs, k_descs, v_descs)),
        ], [4, 4, 4, 1], [R, R, R, P])  # fmt: skip


# -------------------------------------------------------------------------------------- host side

_REGISTERS = {1: (240, 24, 255), 2: (240, 24, 168), 3: (160, 32, 128), 4: (112, 24, 96)}
"""By WARPGROUPS: registers per thread of a consumer, of the producer, and of the launch before
setmaxnreg moves them between the two: 65,536 in all."""


def _blocks(workload, config):
    """(rows, columns, rest) of the tiles of q, k, v and out."""
    columns, rest = tma_blocks.split(workload.head_dim)
    columns_v, rest_v = tma_blocks.split(workload.head_dim_v)
    o_columns = columns_v // max(1, config["O_PARTS"])
    n = config["BLOCK_N"]
    return (64, columns, rest), (n, columns, rest), (n, columns_v, rest_v), (64, o_columns, rest_v)


def _constants(workload, config):
    consumer_registers, producer_registers, _ = _REGISTERS[config["WARPGROUPS"]]
    names = ("WARPGROUPS", "BLOCK_N", "STAGES", "Q_STAGES", "O_PARTS", "PING_PONG", "LANE_SUM",
             "HALF_DIAGONAL")  # fmt: skip
    return {
        **{name: config[name] for name in names},
        "CAUSAL": workload.causal,
        "WINDOWED": workload.window is not None,
        "RAGGED": _is_ragged(workload, config),
        "VARLEN": workload.varlen,
        "REST": tma_blocks.split(workload.head_dim)[1],
        "REST_V": tma_blocks.split(workload.head_dim_v)[1],
        "CONSUMER_REGISTERS": consumer_registers,
        "PRODUCER_REGISTERS": producer_registers,
    }


def _is_ragged(workload, config):
    """Whether more than a tile's first block may need a mask, or a row may see no key."""
    if workload.varlen:
        return True
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
    types |= tma_blocks.types("qkvo", kind, _blocks(workload, config), workload.varlen)
    types |= dict.fromkeys(constants, "constexpr")
    return {
        "function": attention_fwd,
        "signature": {name: types.get(name, "i32") for name in attention_fwd.arg_names},
        "constants": constants,
        "aligned": ["lse_ptr", "schedule_ptr", "tiles_ptr"],
        "options": {"num_warps": 4, "maxnreg": _REGISTERS[config["WARPGROUPS"]][2]},
    }


def arguments(tensors, workload, config, scale):
    """The grid and the kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse): q, out (batch, heads, seqlen_q, head_dim | head_dim_v); k, v
    (batch, heads_kv, seqlen_k, head_dim | head_dim_v), aligned, rows contiguous; lse (batch, heads,
    seqlen_q), fp32, contiguous. Packed: (rows, heads, head_dim | head_dim_v) each, lse (heads,
    rows), then cu_seqlens_q and cu_seqlens_k, (batch + 1,), int32, and what `scratch` says. `scale`
    multiplies q @ k^T and is positive.
    """
    descriptors = tma_blocks.descriptors(tensors[:4], workload.dtype, _blocks(workload, config))
    lse, w = tensors[4], workload
    schedule, tiles = tensors[-2:] if w.varlen else tile_table.tables(w, config, lse.device)
    rows = (lse, 1) if w.varlen else w.seqlen_q
    sizes = [w.heads, rows, w.seqlen_k, w.window or 0, scale * LOG2_E]
    constants = _constants(w, config).values()
    return (len(schedule) - 1, 1, 1), [*descriptors, lse, schedule, tiles, *sizes, *constants]
