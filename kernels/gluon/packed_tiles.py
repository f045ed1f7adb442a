"""Which program works on which tile of packed sequences: made on the device, for their lengths are
known nowhere else, and a replayed CUDA graph may find others than it was captured with.

Longest tiles first (`tile_table` says why) and without a sort: the rank of a tile is the number of
those that see more keys, which each sequence gives in closed form. Tiles in order of rank, each
with all of its heads, are dealt to the programs there and back again.
"""

import triton
import triton.language as tl

COLUMNS = 8
"""Of a tile: (query head, KV head, first query row in its sequence, where the sequence's rows begin
and how many they are, where its keys begin and how many, nothing)."""
_TILES, _SEQUENCES, _HEADS, _PROGRAMS = 32, 128, 16, 256
"""What one program of the kernel looks at together."""


@triton.jit
def pack_tiles(
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, schedule_ptr, tiles_ptr,
    bounds, heads, group, window, programs,
    ROWS: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, COLUMNS: tl.constexpr,
    TILES: tl.constexpr, SEQUENCES: tl.constexpr, HEADS: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Writes TILES tiles of all heads to `tiles`, and the first program also `schedule`.

    `bounds` is one more than there are sequences; tiles have ROWS query rows.
    """
    batch = bounds - 1
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    sequence, start, total = _found(tile, cu_seqlens_q_ptr, batch, ROWS, SEQUENCES)
    if tl.program_id(0) == 0:
        for first in range(0, programs + 1, PROGRAMS):
            program = first + tl.arange(0, PROGRAMS)
            begin = _tiles_before(program, total * heads, programs)
            tl.store(schedule_ptr + program, begin, mask=program <= programs)
    if tl.program_id(0) * TILES < total:
        exists, number = tile < total, tile - start
        q_begin, seqlen_q = _bounds(cu_seqlens_q_ptr, sequence, exists)
        k_begin, seqlen_k = _bounds(cu_seqlens_k_ptr, sequence, exists)
        offset, most = _keys(seqlen_q, seqlen_k, window, ROWS, CAUSAL, WINDOWED)
        keys = tl.minimum((number + 1) * ROWS + offset, most)
        rank = tl.zeros([TILES], tl.int32)
        for first in range(0, batch, SEQUENCES):
            other = first + tl.arange(0, SEQUENCES)
            _, rows = _bounds(cu_seqlens_q_ptr, other, other < batch)
            _, length = _bounds(cu_seqlens_k_ptr, other, other < batch)
            other_offset, other_most = _keys(rows, length, window, ROWS, CAUSAL, WINDOWED)
            others = (other_offset[None, :], other_most[None, :], tl.cdiv(rows, ROWS)[None, :])
            rank += _ahead(keys, sequence, number, other, others, ROWS)
        for first in range(0, heads, HEADS):
            head = (first + tl.arange(0, HEADS))[None, :]
            place = rank[:, None] * heads + head
            turn, program = place // programs, place % programs
            program = tl.where(turn % 2 == 1, programs - 1 - program, program)
            row = _tiles_before(program, total * heads, programs) + turn
            entry, mask = tiles_ptr + row * COLUMNS, exists[:, None] & (head < heads)
            tl.store(entry, head, mask=mask)
            tl.store(entry + 1, head // group, mask=mask)
            tl.store(entry + 2, number[:, None] * ROWS, mask=mask)
            tl.store(entry + 3, q_begin[:, None], mask=mask)
            tl.store(entry + 4, seqlen_q[:, None], mask=mask)
            tl.store(entry + 5, k_begin[:, None], mask=mask)
            tl.store(entry + 6, seqlen_k[:, None], mask=mask)


@triton.jit
def _found(tile, cu_seqlens_q_ptr, batch, ROWS: tl.constexpr, SEQUENCES: tl.constexpr):
    """(sequence of each tile, tiles of the sequences before, tiles of all sequences)."""
    total = 0
    sequence, start = tl.zeros_like(tile), tl.zeros_like(tile)
    for first in range(0, batch, SEQUENCES):
        other = first + tl.arange(0, SEQUENCES)
        _, rows = _bounds(cu_seqlens_q_ptr, other, other < batch)
        count = tl.cdiv(rows, ROWS)
        ends = (total + tl.cumsum(count, 0))[None, :]
        passed = (ends <= tile[:, None]) & (other < batch)[None, :]
        sequence += tl.sum(passed.to(tl.int32), 1)
        start = tl.maximum(start, tl.max(tl.where(passed, ends, 0), 1))
        total += tl.sum(count, 0)
    return sequence, start, total


@triton.jit
def _ahead(keys, sequence, number, other, others, ROWS: tl.constexpr):
    """How many tiles of some sequences come before each tile: those that see more keys, and of
    those that see as many the ones of earlier sequences, and of its own the earlier ones."""
    _, _, count = others
    more = _seeing_more(keys[:, None], others, ROWS)
    as_many = _seeing_more(keys[:, None] - 1, others, ROWS)
    ahead = tl.where(other[None, :] < sequence[:, None], as_many, more)
    earlier = number[:, None] - (count - as_many)
    ahead += tl.where(other[None, :] == sequence[:, None], earlier, 0)
    return tl.sum(ahead, 1)


@triton.jit
def _bounds(cu_seqlens_ptr, sequence, mask):
    """Where sequences begin, and how long they are."""
    begin = tl.load(cu_seqlens_ptr + sequence, mask=mask, other=0)
    return begin, tl.load(cu_seqlens_ptr + sequence + 1, mask=mask, other=0) - begin


@triton.jit
def _keys(seqlen_q, seqlen_k, window, ROWS: tl.constexpr, CAUSAL: tl.constexpr,
          WINDOWED: tl.constexpr):  # fmt: skip
    """(offset, most): tile t of a sequence sees min(ROWS * (t + 1) + offset, most) keys.

    Not exactly where a window ends within the first tile or a sequence within the last.
    """
    offset, most = seqlen_k, seqlen_k
    if CAUSAL:
        offset = seqlen_k - seqlen_q
    if WINDOWED:
        most = tl.minimum(seqlen_k, ROWS + window)
    return offset, most


@triton.jit
def _seeing_more(keys, sequences, ROWS: tl.constexpr):
    """How many tiles of each sequence, its last ones, see more keys than that."""
    offset, most, count = sequences
    fewer = tl.minimum(tl.maximum((keys - offset) // ROWS, 0), count)
    return tl.where(most > keys, count - fewer, 0)


@triton.jit
def _tiles_before(program, total, programs):
    """Tiles of all programs before one, when `total` are dealt there and back again."""
    turns, rest = total // programs, total % programs
    last = tl.where(
        turns % 2 == 1, tl.maximum(program - (programs - rest), 0), tl.minimum(program, rest)
    )
    return program * turns + last


# -------------------------------------------------------------------------------------- host side


def prologue(workload, config):
    """The variant that makes the tables of a call; None where the host makes them."""
    if not workload.varlen:
        return None
    constants = {
        "ROWS": 64 * config["WARPGROUPS"],
        "CAUSAL": workload.causal,
        "WINDOWED": workload.window is not None,
        "COLUMNS": COLUMNS,
        "TILES": _TILES,
        "SEQUENCES": _SEQUENCES,
        "HEADS": _HEADS,
        "PROGRAMS": _PROGRAMS,
    }
    types = {name: "*i32" for name in pack_tiles.arg_names if name.endswith("_ptr")}
    types |= dict.fromkeys(constants, "constexpr")
    return {
        "function": pack_tiles,
        "signature": {name: types.get(name, "i32") for name in pack_tiles.arg_names},
        "constants": constants,
        "aligned": ["schedule_ptr", "tiles_ptr"],
        "options": {"num_warps": 4},
    }


def scratch(tensors, workload, config):
    """Shapes and dtypes of (schedule, tiles), see `tile_table.tables`, with COLUMNS per tile.

    `tensors` = (q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k). There is room for as many rows and
    sequences as the next powers of two.
    """
    import torch  # takes seconds, which compiling does without

    tiles = _most_tiles(tensors, config) * workload.heads
    sms = torch.cuda.get_device_properties(tensors[0].device).multi_processor_count
    return ((min(tiles, sms) + 1,), torch.int32), ((tiles + 1, COLUMNS), torch.int32)


def prologue_arguments(tensors, workload, config):
    """The grid and the arguments of `pack_tiles`: `tensors` of `scratch`, then what that says."""
    *_, cu_seqlens_q, cu_seqlens_k, schedule, tiles = tensors
    grid = (triton.cdiv(_most_tiles(tensors, config), _TILES), 1, 1)
    pointers = [cu_seqlens_q, cu_seqlens_k, schedule, tiles]
    sizes = [workload.heads, workload.group, workload.window or 0, len(schedule) - 1]
    constants = prologue(workload, config)["constants"].values()
    return grid, [*pointers, (cu_seqlens_q, 0), *sizes, *constants]


def _most_tiles(tensors, config):
    """Tiles of one head that such tensors can have: each sequence may have one that is not full."""
    rows = triton.next_power_of_2(tensors[0].shape[0])
    batch = triton.next_power_of_2(max(1, tensors[5].shape[0] - 1))
    return rows // (64 * config["WARPGROUPS"]) + batch
