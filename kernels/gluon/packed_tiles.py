"""The list of packed sequences' tiles: made on the device, for their lengths are known nowhere
else, and a replayed CUDA graph may find others than it was captured with.

Programs take tiles from its front as they get done (`draw` in tiles.py): what is worked on at one
time lies close together, and the order decides what the L2 cache holds. Sequences with most keys
come first, as short ones at the end let the programs end together. Of a sequence come sections of
heads whose K and V the cache holds together, one after the other. Of a section come the last rows
first, as under a causal mask they see most keys, and all its heads of the same rows. It takes no
sort: how many tiles come before one is a sum over the sequences.
"""

import triton
import triton.language as tl

COLUMNS = 8
"""Of a tile: (query head, KV head, first query row in its sequence, where the sequence's rows begin
and how many they are, where its keys begin and how many, nothing). What ends the list has the row
-1."""
_TILES, _SEQUENCES, _HEADS = 32, 128, 16
"""What one program of the kernel looks at together."""


@triton.jit
def pack_tiles(
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, schedule_ptr, tiles_ptr,
    bounds, heads, group, section,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TILES: tl.constexpr, SEQUENCES: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Writes TILES tiles of all heads to `tiles`; the first program ends the list, and writes to
    `schedule` how many tiles have been drawn, none, and how many there are.

    `bounds` is one more than there are sequences; tiles have ROWS query rows. K and V of one KV
    head fill a section if it has `section` keys.
    """
    batch = bounds - 1
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    sequence, start, total = _found(tile, cu_seqlens_q_ptr, batch, ROWS, SEQUENCES)
    if tl.program_id(0) == 0:
        tl.store(schedule_ptr, 0)
        tl.store(schedule_ptr + 1, total * heads)
        tl.store(tiles_ptr + total * heads * COLUMNS + 2, -1)
    if tl.program_id(0) * TILES < total:
        exists = tile < total
        q_begin, seqlen_q = _bounds(cu_seqlens_q_ptr, sequence, exists)
        k_begin, seqlen_k = _bounds(cu_seqlens_k_ptr, sequence, exists)
        before = tl.zeros([TILES], tl.int32)
        for first in range(0, batch, SEQUENCES):
            other = first + tl.arange(0, SEQUENCES)
            _, rows = _bounds(cu_seqlens_q_ptr, other, other < batch)
            _, keys = _bounds(cu_seqlens_k_ptr, other, other < batch)
            longer = keys[None, :] > seqlen_k[:, None]
            as_long = keys[None, :] == seqlen_k[:, None]
            ahead = longer | (as_long & (other[None, :] < sequence[:, None]))
            before += tl.sum(tl.where(ahead, tl.cdiv(rows, ROWS)[None, :], 0), 1)
        turn, count = (tile - start)[:, None], tl.cdiv(seqlen_q, ROWS)[:, None]
        at_once = tl.maximum(section // tl.maximum(seqlen_k, 1), 1) * group
        at_once = tl.minimum(at_once, heads)[:, None]
        for first in range(0, heads, HEADS):
            head = (first + tl.arange(0, HEADS))[None, :]
            earlier = head // at_once * at_once  # heads of the sections before
            together = tl.minimum(at_once, heads - earlier)
            place = before[:, None] * heads + earlier * count + turn * together + head - earlier
            entry, mask = tiles_ptr + place * COLUMNS, exists[:, None] & (head < heads)
            tl.store(entry, head, mask=mask)
            tl.store(entry + 1, head // group, mask=mask)
            tl.store(entry + 2, (count - 1 - turn) * ROWS, mask=mask)
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
def _bounds(cu_seqlens_ptr, sequence, mask):
    """Where sequences begin, and how long they are."""
    begin = tl.load(cu_seqlens_ptr + sequence, mask=mask, other=0)
    return begin, tl.load(cu_seqlens_ptr + sequence + 1, mask=mask, other=0) - begin


# -------------------------------------------------------------------------------------- host side


def preprocess(workload, config):
    """The variant that makes the list of a call; None where the host makes tables."""
    if not workload.varlen:
        return None
    constants = {
        "ROWS": 64 * config["WARPGROUPS"],
        "COLUMNS": COLUMNS,
        "TILES": _TILES,
        "SEQUENCES": _SEQUENCES,
        "HEADS": _HEADS,
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


def scratch(tensors, spec):
    """Shapes and dtypes of (schedule, tiles), see `pack_tiles`: a call's own, as it counts in them.

    `tensors` = (q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k). There is room for as many rows and
    sequences as the next powers of two.
    """
    import torch  # takes seconds, which compiling does without

    tiles = _most_tiles(tensors, spec.config) * spec.workload.heads
    return ((2,), torch.int32), ((tiles + 1, COLUMNS), torch.int32)


def preprocess_arguments(tensors, spec):
    """The grid and the arguments of `pack_tiles`: `tensors` of `scratch`, then what that says."""
    workload, config = spec.workload, spec.config
    *_, cu_seqlens_q, cu_seqlens_k, schedule, tiles = tensors
    grid = (triton.cdiv(_most_tiles(tensors, config), _TILES), 1, 1)
    pointers = [cu_seqlens_q, cu_seqlens_k, schedule, tiles]
    section = config["L2_SECTION_MB"] * 2**20 // (2 * (workload.head_dim + workload.head_dim_v))
    sizes = [workload.heads, workload.group, section]
    constants = preprocess(workload, config)["constants"].values()
    return grid, [*pointers, (cu_seqlens_q, 0), *sizes, *constants]


def programs(tiles, spec):
    """How many CTAs work through a list with that much room."""
    return min(len(tiles) - 1, spec.sms)


def _most_tiles(tensors, config):
    """Tiles of one head that such tensors can have: each sequence may have one that is not full."""
    rows = triton.next_power_of_2(tensors[0].shape[0])
    batch = triton.next_power_of_2(max(1, tensors[5].shape[0] - 1))
    return rows // (64 * config["WARPGROUPS"]) + batch
