"""The device code of gather_pages.py: copies the keys and values of a cache with pages to memory
where those of all sequences follow one another."""

import triton
import triton.language as tl

AT_ONCE = tl.constexpr(128)
"""Sequences whose lengths are added up at the same time."""


@triton.jit
def gather_pages(
    k_ptr, v_ptr, seqlens_ptr, table_ptr, k_out_ptr, v_out_ptr, cu_seqlens_ptr,
    k_descale_ptr, v_descale_ptr,
    k_page, k_slot, k_head, v_page, v_slot, v_head,
    kd_sequence, kd_head, vd_sequence, vd_head, table_row, batch, table_pages,
    most_keys, heads_kv, blocks,
    HEAD_DIM: tl.constexpr, HEAD_DIM_V: tl.constexpr, PAD_D: tl.constexpr, PAD_DV: tl.constexpr,
    PAGE_SIZE: tl.constexpr, E4M3_CACHE: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Copies BLOCK_N keys and values of one KV head and sequence, or nothing where the sequence has
    fewer keys than the launch has blocks for.

    `blocks` are those of a sequence, and `most_keys` how many keys of it are copied at most. The
    programs of a sequence's first block write where its keys end: `cu_seqlens` is (batch + 1,).
    """
    head = tl.program_id(0) % heads_kv  # neighbours in memory are copied at the same time
    block = tl.program_id(0) // heads_kv
    sequence, block = block // blocks, block % blocks
    if sequence < batch:
        most_keys = tl.minimum(most_keys, table_pages * PAGE_SIZE)
        length = _within(tl.load(seqlens_ptr + sequence), most_keys)
        if (block == 0) | (block * BLOCK_N < length):
            begin = _keys_before(seqlens_ptr, sequence, most_keys)
            if (block == 0) & (head == 0):
                tl.store(cu_seqlens_ptr + sequence + 1, begin + length)
                if sequence == 0:
                    tl.store(cu_seqlens_ptr, 0)
            keys = block * BLOCK_N + tl.arange(0, BLOCK_N)
            real = keys < length
            pages = tl.load(table_ptr + sequence.to(tl.int64) * table_row + keys // PAGE_SIZE,
                            mask=real, other=0).to(tl.int64)  # fmt: skip
            slots = keys % PAGE_SIZE
            to = (begin + keys).to(tl.int64) * heads_kv + head
            k_descale = 1.0
            v_descale = 1.0
            if E4M3_CACHE:
                k_descale = tl.load(k_descale_ptr + sequence * kd_sequence + head * kd_head)
                v_descale = tl.load(v_descale_ptr + sequence * vd_sequence + head * vd_head)
            _copy(k_ptr + head.to(tl.int64) * k_head, pages * k_page + slots * k_slot,
                  k_out_ptr, to, real, k_descale, HEAD_DIM, PAD_D, E4M3_CACHE)  # fmt: skip
            _copy(v_ptr + head.to(tl.int64) * v_head, pages * v_page + slots * v_slot,
                  v_out_ptr, to, real, v_descale, HEAD_DIM_V, PAD_DV, E4M3_CACHE)  # fmt: skip


@triton.jit
def _within(length, most_keys):
    """Returns how many keys of a sequence are copied: a length below 0 counts as none, and one
    beyond the pages as full pages."""
    return tl.minimum(tl.maximum(length, 0), most_keys)


@triton.jit
def _keys_before(seqlens_ptr, sequence, most_keys):
    """Returns how many keys the sequences before this one have."""
    before = 0
    for first in tl.range(0, sequence, AT_ONCE):
        other = first + tl.arange(0, AT_ONCE)
        lengths = tl.load(seqlens_ptr + other, mask=other < sequence, other=0)
        before += tl.sum(_within(lengths, most_keys), 0)
    return before


@triton.jit
def _copy(
    source, rows, target, to, real, descale,
    WIDTH: tl.constexpr, PAD: tl.constexpr, E4M3_CACHE: tl.constexpr,
):  # fmt: skip
    """Copies the rows that are real. `rows` are offsets from `source`, `to` numbers of rows of
    `target`."""
    cols = tl.arange(0, PAD)
    mask = real[:, None] & (cols < WIDTH)[None, :]
    block = tl.load(source + rows[:, None] + cols[None, :], mask=mask)
    if E4M3_CACHE:
        block = (block.to(tl.float32) * descale).to(target.dtype.element_ty)
    tl.store(target + (to * WIDTH)[:, None] + cols[None, :], block, mask=mask)
