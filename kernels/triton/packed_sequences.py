"""The beginnings of packed sequences, for kernels that count tiles over all sequences."""

import triton
import triton.language as tl

AT_ONCE = tl.constexpr(128)
"""Sequences whose tiles are counted at the same time."""


@triton.jit
def tile_of_sequence(tile, cu_seqlens_ptr, bounds, ROWS: tl.constexpr):
    """Returns (sequence, tile of the sequence) of a tile of ROWS rows that is counted over all
    sequences. If there is no such tile, the sequence is that after the last one.

    `bounds` is the number of sequences plus one.
    """
    sequence, start, total = 0, 0, 0
    for first in range(0, bounds - 1, AT_ONCE):
        other = first + tl.arange(0, AT_ONCE)
        here = other < bounds - 1
        begin = tl.load(cu_seqlens_ptr + other, mask=here, other=0)
        end = tl.load(cu_seqlens_ptr + other + 1, mask=here, other=0)
        ends = total + tl.cumsum((end - begin + ROWS - 1) // ROWS, 0)
        passed = (ends <= tile) & here
        sequence += tl.sum(passed.to(tl.int32), 0)
        start = tl.maximum(start, tl.max(tl.where(passed, ends, 0), 0))
        total = tl.max(ends, 0)
    return sequence, tile - start


@triton.jit
def bounds_of_sequence(cu_seqlens_ptr, sequence, bounds):
    """Returns (begin, length) of a sequence; the one after the last has no rows."""
    exists = sequence < bounds - 1
    begin = tl.load(cu_seqlens_ptr + sequence, mask=exists, other=0)
    return begin, tl.load(cu_seqlens_ptr + sequence + 1, mask=exists, other=0) - begin
