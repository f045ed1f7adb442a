"""FlashAttention forward for Hopper in Gluon: warp-specialised, persistent, TMA and WGMMA.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

Algorithm: Shah et al., "FlashAttention-3: Fast and Accurate Attention with Asynchrony and
Low-precision", arXiv:2407.08608. One program runs on each SM and works through tiles of
64 * WARPGROUPS query rows, of one head or of PACK_GQA together. Its producer warp copies Q once
and K and V in blocks of BLOCK_N keys, from the last visible block to the first; each consumer
warpgroup owns 64 rows. A consumer issues the scores of a block together with the output of the
block before, and computes the softmax of the one while the other is still being multiplied.

Choices beyond the paper:
* which program works on which tile is a table from the host, longest tiles first, each to the
  program with the least work so far: no atomic counter, the same order every time. Of packed
  sequences, a kernel that runs first lists the tiles, and programs draw from the list as they get
  done (see gluon/packed_tiles.py);
* a warpgroup skips the blocks above its own diagonal, although others of the tile need them;
* the output leaves through the buffer that the tile's queries came in, by TMA, while the next
  tile's queries arrive in another.

With e4m3, a kernel that runs first writes V^T (see gluon/e4m3.py); scores and outputs are
multiplied by scales of each KV head, and the output is bf16. Each block's p @ v is added in fp32,
for which there are registers up to 128 columns.

Causal means bottom-right aligned (FlashAttention >= 2.1): query i sees keys j <= i + seqlen_k -
seqlen_q. A window that reaches `ahead` keys beyond this diagonal is a causal mask with a diagonal
further ahead, of which each query sees the last `window` keys. A row that sees no key gives out = 0
and lse = -inf. With a soft-cap c, scores s become c * tanh(s / c), by the hardware's tanh.

What each parameter trades:
    WARPGROUPS            rows per tile against registers per thread
    PACK_GQA              query heads of a KV head that share a tile: few queries fill its rows so
    BLOCK_N               fewer, longer steps against registers and shared memory
    num_stages            blocks of K and of V in flight against shared memory
    LOAD_K_FIRST          1: the next block of K is copied before V of this one, in the order of
                          their use
    Q_STAGES              2: the next tile's queries arrive early, for shared memory
    EPILOGUE_SUBTILE      0: the output leaves through the queries' buffer; 1, 2: through a buffer
                          of its own, in as many trips
    PING_PONG             1: consumers use the tensor cores one after the other
    DEFER_ROW_SUM         1: row sums stay spread over lanes until the end of a tile
    RESCALE_THRESHOLD     powers of two by which scores may exceed their row's maximum before it
                          follows them; a warp whose maxima all stay need not rescale its output
    EX2_EMULATION_FREQ    e4m3, whose exponentials take as long as its products: one in so many, 4
                          or 8, is computed by multiplications; 0: none
    SPLIT_DIAGONAL_BLOCK  1: of a causal tile's first block, only the half that can be seen is
                          multiplied
    L2_SECTION_MB         masked or packed: MiB of K and V of the heads whose tiles are worked on
                          together, so that they stay in the L2 cache
"""

import math

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from tunefa.kernels.gluon import e4m3, packed_tiles, tma_blocks
from tunefa.kernels.gluon.e4m3 import descale
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
from tunefa.kernels.gluon.products import arrived, as_operand, decayed, no_output, outputs, scaled
from tunefa.kernels.gluon.tiles import (
    draw,
    drawn,
    first_and_count,
    hand,
    handed,
    listed,
    new_tray,
    scheduled,
)
from tunefa.kernels.hopper import tile_table, transposed_v
from tunefa.kernels.hopper.tile_table import specialize  # noqa: F401 - a part of the contract
from tunefa.kernels.hopper.tma import is_aligned  # noqa: F401 - a part of the contract

LOG2_E = math.log2(math.e)


# ----------------------------------------------------------------------------------- the producer


@gluon.jit
def producer(attention, pipes, q_descs, k_descs, v_descs):
    """One warp: Q of each tile, then K and V of its blocks from the last to the first."""
    v = pipes.v
    descs = (q_descs, k_descs, v_descs)
    loaded = 0
    if attention.VARLEN:
        turn = 0
        total = gl.load(pipes.schedule + 1)
        tile = listed(attention, pipes, gl.program_id(0), total)
        while tile.exists():
            number = draw(pipes.schedule)
            hand(pipes, turn, tile)
            loaded, keys, key = load(attention, pipes, tile, turn, loaded, descs)
            tile = listed(attention, pipes, drawn(number), total)
            v.fill(loaded % v.SLOTS, loaded // v.SLOTS, v_descs, keys, key)
            loaded += 1
            turn += 1
        hand(pipes, turn, tile)  # which is none: consumers wait for one
        for me in gl.static_range(attention.WARPGROUPS):
            slot, uses = attention.q_slot(turn, me)
            pipes.q.fill_nothing(slot, uses)
    else:
        first, count = first_and_count(pipes.schedule)
        tile = scheduled(attention, pipes.tiles, first)
        for turn in range(0, count):
            here = tile
            tile = scheduled(attention, pipes.tiles, first + turn + 1)  # long before it is needed
            loaded, keys, key = load(attention, pipes, here, turn, loaded, descs)
            v.fill(loaded % v.SLOTS, loaded // v.SLOTS, v_descs, keys, key)
            loaded += 1


@gluon.jit
def load(attention, pipes, tile, turn, loaded, descs):
    """All but the last V of a tile: (blocks loaded, place and first key of the last)."""
    q, k, v = pipes.q, pipes.k, pipes.v
    q_descs, k_descs, v_descs = descs
    WARPGROUPS: gl.constexpr = attention.WARPGROUPS
    a, row = attention.of(tile), tile.row
    queries, keys = tile.queries(), tile.keys()
    begin, end = a.blocks(row, a.ROWS * WARPGROUPS)
    for me in gl.static_range(WARPGROUPS):
        slot, uses = attention.q_slot(turn, me)
        q.fill(slot, uses, q_descs, queries, row + a.ROWS * me)
        if me == 0:  # the first scores need no more than this
            key = (end - 1) * attention.BLOCK_N
            k.fill(loaded % k.SLOTS, loaded // k.SLOTS, k_descs, keys, key)
    for block in range(1, end - begin):
        key = (end - 1 - block) * attention.BLOCK_N
        before = key + attention.BLOCK_N
        if attention.LOAD_K_FIRST:
            k.fill((loaded + 1) % k.SLOTS, (loaded + 1) // k.SLOTS, k_descs, keys, key)
            v.fill(loaded % v.SLOTS, loaded // v.SLOTS, v_descs, keys, before)
        else:
            v.fill(loaded % v.SLOTS, loaded // v.SLOTS, v_descs, keys, before)
            k.fill((loaded + 1) % k.SLOTS, (loaded + 1) // k.SLOTS, k_descs, keys, key)
        loaded += 1
    return loaded, keys, begin * attention.BLOCK_N


# ---------------------------------------------------------------------------------- the consumers


@gluon.jit
def consumer(attention, pipes, o_descs, o_tiles, lse_ptr, descales, ME: gl.constexpr):
    """One warpgroup: 64 rows of each tile."""
    outs = (o_descs, o_tiles, lse_ptr)
    block = 0  # counts those that went through the rings, over all tiles
    if attention.VARLEN:
        turn = 0
        tile = received(attention, pipes, turn, ME)
        while tile.exists():
            block = work(attention, pipes, tile, turn, block, outs, descales, ME)
            turn += 1
            tile = received(attention, pipes, turn, ME)
    else:
        first, count = first_and_count(pipes.schedule)
        tile = scheduled(attention, pipes.tiles, first)
        for turn in range(0, count):
            here = tile
            tile = scheduled(attention, pipes.tiles, first + turn + 1)
            block = work(attention, pipes, here, turn, block, outs, descales, ME)
    tma.store_wait(0)


@gluon.jit
def received(attention, pipes, turn, ME: gl.constexpr):
    """The tile of a turn, when its queries are there."""
    slot, uses = attention.q_slot(turn, ME)
    pipes.q.wait(slot, uses)
    return handed(pipes, turn)


@gluon.jit
def work(attention, pipes, tile, turn, block, outs, descales, ME: gl.constexpr):
    """64 rows of a tile from their queries to their output: the next block."""
    o_descs, o_tiles, lse_ptr = outs
    q_descale, k_descale, v_descale, heads_kv = descales
    a = attention.of(tile)
    if attention.E4M3:
        at = tile.batch * heads_kv + tile.head_kv
        a = attention.with_scale(descale(q_descale, at) * descale(k_descale, at))
    row = tile.row + a.ROWS * ME
    tile_begin, tile_end = a.blocks(tile.row, a.ROWS * a.WARPGROUPS)
    begin, end = a.blocks(row, a.ROWS)
    if a.CAUSAL:
        block = skip(pipes, block, tile_end - end, ME)
    slot, uses = a.q_slot(turn, ME)
    if not a.VARLEN:  # `received` has waited for them
        pipes.q.wait(slot, uses)
    acc, row_max, row_sum, block = attend(a, pipes, turn, slot, block, row, begin, end, ME)
    if a.WINDOWED:
        block = skip(pipes, block, begin - tile_begin, ME)
    rows_before = attention.rows_before(tile)
    share = write_lse(a, lse_ptr + rows_before, row, row_max, row_sum)
    if a.E4M3:
        share *= descale(v_descale, at)
    out = scaled(acc, share, pipes.v)
    write_out(a, out, pipes, slot, o_descs, o_tiles, tile.queries(), row, ME)
    return block


@gluon.jit
def attend(a, pipes, turn, slot, block, row, begin, end, ME: gl.constexpr):
    """64 rows past the key blocks [begin, end): (sum of p @ v, row_max, row_sum, next block)."""
    q, k, v = pipes.q, pipes.k, pipes.v
    k.wait(block % k.SLOTS, block // k.SLOTS)
    pipes.turns.wait(block, ME)
    p32, row_max, row_sum = first_block(a, pipes, slot, block, row, end - 1, ME)
    p = as_operand(p32, v)
    acc = no_output(v)
    if a.EPILOGUE_SUBTILE == 0 and a.Q_STAGES > 1:
        if turn > 0:  # the output of the tile before has left its buffer
            tma.store_wait(0)
            free, _ = a.q_slot(turn - 1, ME)
            q.free(free)
    block += 1
    state = (acc, p, row_max, row_sum, gl.full_like(row_max, 1.0))
    for j in range(0, end - 1 - begin):
        state = step(a, pipes, slot, state, block, row, end - 2 - j, ME)
        block += 1
    acc, p, row_max, row_sum, decay = state
    if a.EPILOGUE_SUBTILE > 0:
        q.free(slot)
    before = block - 1
    v.wait(before % v.SLOTS, before // v.SLOTS)
    if a.RESCALE_THRESHOLD:
        acc = decayed(acc, decay, v)
    acc = arrived(outputs(p, v, before % v.SLOTS, acc), decay, v)
    v.free(before % v.SLOTS)
    return acc, row_max, row_sum, block


# ------------------------------------------------------------------------------------- the kernel


@gluon.jit
def attention_fwd(
    q_desc, k_desc, v_desc, o_desc, q_rest_desc, k_rest_desc, v_rest_desc, o_rest_desc,
    lse_ptr, q_descale_ptr, k_descale_ptr, v_descale_ptr, heads_kv, schedule_ptr, tiles_ptr,
    heads, seqlen_q, seqlen_k, window, ahead, scale_log2, tanh_scale,
    WARPGROUPS: gl.constexpr, PACK_GQA: gl.constexpr, BLOCK_N: gl.constexpr,
    num_stages: gl.constexpr, LOAD_K_FIRST: gl.constexpr, Q_STAGES: gl.constexpr,
    EPILOGUE_SUBTILE: gl.constexpr, PING_PONG: gl.constexpr, DEFER_ROW_SUM: gl.constexpr,
    RESCALE_THRESHOLD: gl.constexpr, EX2_EMULATION_FREQ: gl.constexpr,
    SPLIT_DIAGONAL_BLOCK: gl.constexpr,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, AHEAD: gl.constexpr, SOFTCAP: gl.constexpr,
    RAGGED: gl.constexpr, E4M3: gl.constexpr, VARLEN: gl.constexpr,
    REST: gl.constexpr, REST_V: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr, PRODUCER_REGISTERS: gl.constexpr,
):  # fmt: skip
    """Works through the tiles that the schedule gives to this program, or that it draws."""
    a = Attention(
        heads=heads, seqlen_q=seqlen_q, seqlen_k=seqlen_k, window=window, ahead=ahead,
        scale_log2=scale_log2, tanh_scale=tanh_scale,
        WARPGROUPS=WARPGROUPS, PACK_GQA=PACK_GQA, ROWS=64 // PACK_GQA, BLOCK_N=BLOCK_N,
        Q_STAGES=Q_STAGES, EPILOGUE_SUBTILE=EPILOGUE_SUBTILE, DEFER_ROW_SUM=DEFER_ROW_SUM,
        RESCALE_THRESHOLD=RESCALE_THRESHOLD,
        SPLIT_DIAGONAL_BLOCK=SPLIT_DIAGONAL_BLOCK, LOAD_K_FIRST=LOAD_K_FIRST,
        EX2_EMULATION_FREQ=EX2_EMULATION_FREQ,
        CAUSAL=CAUSAL, WINDOWED=WINDOWED, AHEAD=AHEAD, SOFTCAP=SOFTCAP, RAGGED=RAGGED, E4M3=E4M3,
        VARLEN=VARLEN,
    )  # fmt: skip
    q_descs, k_descs, v_descs = (q_desc, q_rest_desc), (k_desc, k_rest_desc), (v_desc, v_rest_desc)
    o_descs = (o_desc, o_rest_desc)
    q = new_ring(q_descs, REST, Q_STAGES * WARPGROUPS, 1)
    k = new_ring(k_descs, REST, num_stages, WARPGROUPS)
    v = new_ring(v_descs, REST_V, num_stages, WARPGROUPS, E4M3)
    o_tiles = (q.tiles, q.tiles)
    if EPILOGUE_SUBTILE > 0:
        o_tile = new_tiles(o_desc, WARPGROUPS)
        o_rest_tile = o_tile
        if REST_V:
            o_rest_tile = new_tiles(o_rest_desc, WARPGROUPS)
        o_tiles = (o_tile, o_rest_tile)
    turns = Turns(new_barriers(WARPGROUPS, 1), WARPGROUPS, PING_PONG)
    tray = turns.barriers  # not used
    if VARLEN:
        tray = new_tray()
    pipes = Pipes(q, k, v, turns, schedule_ptr, tiles_ptr, tray)
    descales = (q_descale_ptr, k_descale_ptr, v_descale_ptr, heads_kv)
    R: gl.constexpr = CONSUMER_REGISTERS
    P: gl.constexpr = PRODUCER_REGISTERS
    if WARPGROUPS == 1:
        gl.warp_specialize([
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, descales, 0)),
            (producer, (a, pipes, q_descs, k_descs, v_descs)),
        ], [1], [P])  # fmt: skip
    elif WARPGROUPS == 2:
        gl.warp_specialize([
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, descales, 0)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, descales, 1)),
            (producer, (a, pipes, q_descs, k_descs, v_descs)),
        ], [4, 1], [R, P])  # fmt: skip
    elif WARPGROUPS == 3:
        gl.warp_specialize([
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, descales, 0)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, descales, 1)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, descales, 2)),
            (producer, (a, pipes, q_descs, k_descs, v_descs)),
        ], [4, 4, 1], [R, R, P])  # fmt: skip
    else:
        gl.warp_specialize([
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, descales, 0)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, descales, 1)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, descales, 2)),
            (consumer, (a, pipes, o_descs, o_tiles, lse_ptr, descales, 3)),
            (producer, (a, pipes, q_descs, k_descs, v_descs)),
        ], [4, 4, 4, 1], [R, R, R, P])  # fmt: skip


# -------------------------------------------------------------------------------------- host side

_DESCALES = ("q_descale_ptr", "k_descale_ptr", "v_descale_ptr")
_REGISTERS = {1: (240, 24, 255), 2: (240, 24, 168), 3: (160, 32, 128), 4: (112, 24, 96)}
"""By WARPGROUPS: registers per thread of a consumer, of the producer, and of the launch before
setmaxnreg moves them between the two: 65,536 in all."""


def _blocks(workload, config):
    """(heads, rows, columns, rest) of the tiles of q, k, v and out; of V^T's for e4m3."""
    columns, rest = tma_blocks.split(workload.head_dim)
    columns_v, rest_v = tma_blocks.split(workload.head_dim_v)
    o_columns = columns_v // max(1, config["EPILOGUE_SUBTILE"])
    q, k = (config["PACK_GQA"], 64 // config["PACK_GQA"]), (1, config["BLOCK_N"])
    v_block = (*k, columns_v, rest_v)
    if _is_e4m3(workload):
        v_block = (1, columns_v, config["BLOCK_N"], 0)
    return (*q, columns, rest), (*k, columns, rest), v_block, (*q, o_columns, rest_v)


def _dtypes(workload):
    """Of the tiles of q, k, v and out."""
    kind = workload.dtype
    return kind, kind, kind, "bf16" if _is_e4m3(workload) else kind


def _is_e4m3(workload):
    return workload.dtype == "e4m3"


def _constants(workload, config):
    consumer_registers, producer_registers, _ = _REGISTERS[config["WARPGROUPS"]]
    names = ("WARPGROUPS", "PACK_GQA", "BLOCK_N", "num_stages", "LOAD_K_FIRST", "Q_STAGES",
             "EPILOGUE_SUBTILE", "PING_PONG", "DEFER_ROW_SUM", "RESCALE_THRESHOLD",
             "EX2_EMULATION_FREQ", "SPLIT_DIAGONAL_BLOCK")  # fmt: skip
    return {
        **{name: config[name] for name in names},
        "CAUSAL": workload.band != (None, None),
        "WINDOWED": workload.window_left is not None,
        "AHEAD": not workload.causal and workload.band != (None, None),
        "SOFTCAP": workload.softcap,
        "RAGGED": _is_ragged(workload, config),
        "E4M3": _is_e4m3(workload),
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
    if workload.band == (None, None):
        return workload.seqlen_k % config["BLOCK_N"] != 0
    offset = workload.seqlen_k - workload.seqlen_q
    return workload.band != (None, 0) or offset < 0 or offset % 64 != 0


def variant(workload, config, aligned=True):
    """What the compiler needs for one config, with no device present: a plain dict.

    The compiled kernel depends on no batch, head count or length. TMA reads `aligned` tensors only.
    """
    constants = _constants(workload, config)
    types = {"lse_ptr": "*fp32", "scale_log2": "fp32", "tanh_scale": "fp32"}
    types |= {"schedule_ptr": "*i32", "tiles_ptr": "*i32"}
    types |= dict.fromkeys(_DESCALES, "*fp32")
    types |= tma_blocks.types("qkvo", _dtypes(workload), _blocks(workload, config), workload.varlen)
    if not _is_e4m3(workload):
        constants |= dict.fromkeys([*_DESCALES, "heads_kv"])
    types |= dict.fromkeys(constants, "constexpr")
    return {
        "function": attention_fwd,
        "signature": {name: types.get(name, "i32") for name in attention_fwd.arg_names},
        "constants": constants,
        "aligned": ["lse_ptr", "schedule_ptr", "tiles_ptr"],
        "options": {"num_warps": 4, "maxnreg": _REGISTERS[config["WARPGROUPS"]][2]},
    }


def preprocess(workload, config):
    """What writes V^T for 8-bit operands, or the list of packed tiles."""
    if _is_e4m3(workload):
        return e4m3.transposition(workload.head_dim_v)
    return packed_tiles.preprocess(workload, config)


def scratch(tensors, spec):
    """Memory for what `preprocess` writes."""
    if _is_e4m3(spec.workload):
        return transposed_v.scratch(spec.workload)
    return packed_tiles.scratch(tensors, spec)


def preprocess_arguments(tensors, spec):
    """Grid and arguments of `preprocess`."""
    if _is_e4m3(spec.workload):
        return e4m3.transposition_arguments(tensors[2], tensors[-1])
    return packed_tiles.preprocess_arguments(tensors, spec)


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse): q, out (batch, heads, seqlen_q, head_dim | head_dim_v); k, v
    (batch, heads_kv, seqlen_k, head_dim | head_dim_v), aligned, rows contiguous; lse (batch, heads,
    seqlen_q), fp32, contiguous. Packed: (rows, heads, head_dim | head_dim_v) each, lse (heads,
    rows), then cu_seqlens_q and cu_seqlens_k, (batch + 1,), int32. With e4m3 the descales of q, k
    and v follow, each (batch, heads_kv), fp32, contiguous, or empty for 1. Last comes what
    `scratch` says. `scale` multiplies q @ k^T and is positive, as is `softcap`, the bound of the
    scores where `workload.softcap`.
    """
    q, k, v, out, lse, *more = tensors
    w, config, scale, softcap = spec.workload, spec.config, spec.scale, spec.softcap
    rows, descales = w.seqlen_q, [None] * 4
    if _is_e4m3(w):
        *descales, v = more
        descales.append(w.heads_kv)
    if w.varlen:
        schedule, tiles = more[-2:]
        rows, programs = (lse, 1), packed_tiles.programs(tiles, spec)
    else:
        schedule, tiles = tile_table.tables(spec, lse.device)
        programs = len(schedule) - 1
    descriptors = tma_blocks.descriptors((q, k, v, out), _dtypes(w), _blocks(w, config))
    ahead, window = tile_table.edges(w)
    scales = (scale * LOG2_E, 0.0) if softcap is None else (softcap * LOG2_E, scale / softcap)
    sizes = [w.heads, rows, w.seqlen_k, window or 0, ahead, *scales]
    constants = _constants(w, config).values()
    return (programs, 1, 1), [
        *descriptors, lse, *descales, schedule, tiles, *sizes, *constants,
    ]  # fmt: skip
