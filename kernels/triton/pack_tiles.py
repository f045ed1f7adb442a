"""Writes the list of packed sequences' tiles, whose order gluon/host/packed_tiles.py describes."""

import triton
import triton.language as tl


@triton.jit
def pack_tiles(
    cu_seqlens_q_ptr, cu_seqlens_k_ptr, schedule_ptr, tiles_ptr,
    bounds, heads, group, section,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TILES: tl.constexpr, SEQUENCES: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Writes TILES tiles of all heads to `tiles`.

    The first program also writes the end of the list, and to `schedule` the tile counter, which is
    0, and how many tiles there are.

    `bounds` is the number of sequences plus one; a tile has ROWS query rows. K and V of one KV head
    fill a section if it has `section` keys.
    """
    batch = bounds - 1
    tile = tl.program_id(0) * TILES + tl.arange(0, TILES)
    sequence, start, total = _find(tile, cu_seqlens_q_ptr, batch, ROWS, SEQUENCES)
    if tl.program_id(0) == 0:
        tl.store(schedule_ptr, 0)
        tl.store(schedule_ptr + 1, total * heads)
        tl.store(tiles_ptr + total * heads * COLUMNS + 2, -1)
    if tl.program_id(0) * TILES < total:
        exists = tile < total
        q_begin, seqlen_q = _bounds(cu_seqlens_q_ptr, sequence, exists)
        k_begin, seqlen_k = _bounds(cu_seqlens_k_ptr, sequence, exists)
        before = _tiles_before(sequence, seqlen_k, cu_seqlens_q_ptr, cu_seqlens_k_ptr, batch,
                               TILES, SEQUENCES, ROWS)  # fmt: skip
        from_start, count = (tile - start)[:, None], tl.cdiv(seqlen_q, ROWS)[:, None]
        at_once = tl.maximum(section // tl.maximum(seqlen_k, 1), 1) * group
        at_once = tl.minimum(at_once, heads)[:, None]
        for first in range(0, heads, HEADS):
            head = (first + tl.arange(0, HEADS))[None, :]
            earlier = head // at_once * at_once  # heads of the sections before
            together = tl.minimum(at_once, heads - earlier)
            place = before[:, None] * heads + earlier * count
            place = place + from_start * together + head - earlier
            entry, mask = tiles_ptr + place * COLUMNS, exists[:, None] & (head < heads)
            tl.store(entry, head, mask=mask)
            tl.store(entry + 1, head // group, mask=mask)
            tl.store(entry + 2, (count - 1 - from_start) * ROWS, mask=mask)
            tl.store(entry + 3, q_begin[:, None], mask=mask)
            tl.store(entry + 4, seqlen_q[:, None], mask=mask)
            tl.store(entry + 5, k_begin[:, None], mask=mask)
            tl.store(entry + 6, seqlen_k[:, None], mask=mask)


@triton.jit
def _find(tile, cu_seqlens_q_ptr, batch, ROWS: tl.constexpr, SEQUENCES: tl.constexpr):
    """Returns (sequence of each tile, tiles of the sequences before, tiles of all sequences)."""
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
def _tiles_before(
    sequence, seqlen_k, cu_seqlens_q_ptr, cu_seqlens_k_ptr, batch,
    TILES: tl.constexpr, SEQUENCES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Returns how many tiles of one head come before the sequence of each tile: those of sequences
    with more keys, and of earlier ones with as many."""
    before = tl.zeros([TILES], tl.int32)
    for first in range(0, batch, SEQUENCES):
        other = first + tl.arange(0, SEQUENCES)
        _, rows = _bounds(cu_seqlens_q_ptr, other, other < batch)
        _, keys = _bounds(cu_seqlens_k_ptr, other, other < batch)
        longer = keys[None, :] > seqlen_k[:, None]
        as_long = keys[None, :] == seqlen_k[:, None]
        earlier = longer | (as_long & (other[None, :] < sequence[:, None]))
        before += tl.sum(tl.where(earlier, tl.cdiv(rows, ROWS)[None, :], 0), 1)
    return before


@triton.jit
def _bounds(cu_seqlens_ptr, sequence, mask):
    """Returns where sequences begin, and how long they are."""
    begin = tl.load(cu_seqlens_ptr + sequence, mask=mask, other=0)
    return begin, tl.load(cu_seqlens_ptr + sequence + 1, mask=mask, other=0) - begin
