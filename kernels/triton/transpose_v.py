"""Writes V^T for 8-bit attention on Hopper, in the order of keys that gluon/e4m3.py describes."""

import triton
from triton import language as tl


@triton.jit
def transpose(
    v_ptr, vt_ptr,
    heads_kv, seqlen_k, groups, v_batch, v_head, v_key,
    COLUMNS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Writes V (batch, heads_kv, seqlen_k, 4 * COLUMNS) as V^T (batch, heads_kv, 4 * COLUMNS,
    16 * groups), zeros beyond seqlen_k.

    Both are read and written as words of four 8-bit elements. Strides of V are in 16 bytes.
    """
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    batch, head = tl.program_id(0) // heads_kv, tl.program_id(0) % heads_kv
    column = tl.arange(0, COLUMNS)
    v_ptr += 4 * (batch * v_batch + head * v_head)
    # The word of column c2 c1 holds, from its lowest byte on, the keys with c3 c0 = 0, 1, 2, 3.
    key = word // 4 * 16 + word % 4 * 2
    a = _load_keys(v_ptr, key, column, seqlen_k, v_key)
    b = _load_keys(v_ptr, key + 1, column, seqlen_k, v_key)
    c = _load_keys(v_ptr, key + 8, column, seqlen_k, v_key)
    d = _load_keys(v_ptr, key + 9, column, seqlen_k, v_key)
    length = groups * 4
    vt_ptr += tl.program_id(0).to(tl.int64) * (4 * COLUMNS) * length
    for byte in tl.static_range(4):
        low = _byte(a, byte) | (_byte(b, byte) << 8)
        made = low | (_byte(c, byte) << 16) | (_byte(d, byte) << 24)
        row = (4 * column + byte)[:, None].to(tl.int64) * length
        tl.store(vt_ptr + row + word[None, :], tl.trans(made), mask=word[None, :] < length)


@triton.jit
def _load_keys(v_ptr, key, column, seqlen_k, v_key):
    """Returns rows of V in words of four elements, zeros beyond its end."""
    rows = v_ptr + (4 * key[:, None].to(tl.int64) * v_key) + column[None, :]
    return tl.load(rows, mask=key[:, None] < seqlen_k, other=0)


@triton.jit
def _byte(words, number: tl.constexpr):
    """Returns one byte of each word."""
    return (words >> (8 * number)) & 255
