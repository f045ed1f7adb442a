"""8-bit attention on Hopper: V transposed, the order of its keys, and the scales of each head.

WGMMA reads 8-bit operands along the summed axis only (PTX ISA, wgmma.mma_async: no transposed
matrices but of 16 bits), so p @ v needs V^T, which a kernel of its own writes first.

The keys of V^T are in the order in which p lies in registers. Of each 8 columns of a WGMMA
accumulator a lane holds 2, of each 16 columns of an 8-bit left operand 4 consecutive ones. With the
bits of a column of the former c3 c2 c1 c0, lane c2 c1 holds those with any c3 and c0; as column
c2 c1 c3 c0 of the latter they are where they must be, and nothing moves between lanes.

Rounding p is what it costs: emulated block by block on normal inputs of 1,024 and 8,192 keys, the
output is 2.4e-2 to 2.6e-2 off fp64 in relative norm, where p in bf16 gives 2.2e-3 to 2.3e-3.

Hopper's tensor cores keep about 14 bits of an 8-bit product's sum and cut off the rest
(DeepSeek-V3, arXiv:2412.19437, section 3.5.2): after 16,384 keys a fourth of the output can be
missing. So each block's p @ v is summed for itself, and then added in fp32 (`outputs` and `arrived`
in products.py).
"""

import triton
from triton import language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.hopper import transposed_v

_WORDS = 2048
"""Words of four keys times words of four columns that a program of `transpose` works on."""


# ------------------------------------------------------------------------------- the transposition


@triton.jit
def transpose(
    v_ptr, vt_ptr,
    heads_kv, seqlen_k, groups, v_batch, v_head, v_key,
    COLUMNS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Writes V (batch, heads_kv, seqlen_k, 4 * COLUMNS) as V^T (batch, heads_kv, 4 * COLUMNS,
    16 * groups), keys in the order of the module's document, zeros beyond seqlen_k.

    Both are read and written as words of four 8-bit elements. Strides of V are in 16 bytes.
    """
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    batch, head = tl.program_id(0) // heads_kv, tl.program_id(0) % heads_kv
    column = tl.arange(0, COLUMNS)
    v_ptr += 4 * (batch * v_batch + head * v_head)
    # The word of column c2 c1 holds, from its lowest byte on, the keys with c3 c0 = 0, 1, 2, 3.
    key = word // 4 * 16 + word % 4 * 2
    a = _keys(v_ptr, key, column, seqlen_k, v_key)
    b = _keys(v_ptr, key + 1, column, seqlen_k, v_key)
    c = _keys(v_ptr, key + 8, column, seqlen_k, v_key)
    d = _keys(v_ptr, key + 9, column, seqlen_k, v_key)
    length = groups * 4
    vt_ptr += tl.program_id(0).to(tl.int64) * (4 * COLUMNS) * length
    for byte in tl.static_range(4):
        low = _byte(a, byte) | (_byte(b, byte) << 8)
        made = low | (_byte(c, byte) << 16) | (_byte(d, byte) << 24)
        row = (4 * column + byte)[:, None].to(tl.int64) * length
        tl.store(vt_ptr + row + word[None, :], tl.trans(made), mask=word[None, :] < length)


@triton.jit
def _keys(v_ptr, key, column, seqlen_k, v_key):
    """Rows of V in words, zeros beyond its end."""
    rows = v_ptr + (4 * key[:, None].to(tl.int64) * v_key) + column[None, :]
    return tl.load(rows, mask=key[:, None] < seqlen_k, other=0)


@triton.jit
def _byte(words, number: tl.constexpr):
    return (words >> (8 * number)) & 255


def transposition(head_dim):
    """The `variant` of `transpose`."""
    constants = {"COLUMNS": head_dim // 4, "WORDS": _WORDS // (head_dim // 4)}
    types = {"v_ptr": "*i32", "vt_ptr": "*i32", "heads_kv": "i32", "seqlen_k": "i32"}
    types |= {"groups": "i32", "v_batch": "i64", "v_head": "i64", "v_key": "i64"}
    return {
        "function": transpose,
        "signature": types | dict.fromkeys(constants, "constexpr"),
        "constants": constants,
        "aligned": ["v_ptr", "vt_ptr"],
        "options": {"num_warps": 4},
    }


def transposition_arguments(v, vt):
    """Grid and arguments of `transpose`; v is (batch, heads_kv, seqlen_k, head_dim), aligned."""
    batch, heads_kv, seqlen_k, head_dim = v.shape
    constants = transposition(head_dim)["constants"].values()
    groups = vt.shape[3] // transposed_v.KEYS
    # Of the three axes only the first takes more than 65,535.
    grid = (batch * heads_kv, triton.cdiv(4 * groups, _WORDS // (head_dim // 4)), 1)
    return grid, [v, vt, heads_kv, seqlen_k, groups, *transposed_v.strides(v), *constants]


# ---------------------------------------------------------------------------------- on the way to p


@gluon.constexpr_function
def p_log2(E4M3):
    """Probabilities are scaled by two to this before they are rounded.

    e4m3 ends at 448 and has fewer bits below 2^-6 (OCP 8-bit Floating Point Specification 1.0), so
    probabilities up to 2^8 keep all of theirs down to 2^-14 (FlashAttention-3's max_offset).
    """
    return 8 if E4M3 else 0


@gluon.jit
def packed(p):
    """fp32 (rows, keys) as words of four e4m3, (rows, keys // 4), keys in the order of V^T.

    Words, as a loop that carries 8-bit values takes them apart and puts them together each time.
    """
    rows: gl.constexpr = p.shape[0]
    keys: gl.constexpr = p.shape[1]
    bits = p.reshape([rows, keys // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4))  # c3, c2 c1, c0
    even, odd = bits.reshape([rows, keys // 4, 2, 2]).split()
    a, c = even.split()
    b, d = odd.split()
    return gl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
        mov.b32 $0, {low, high};
        }""",
        "=r,f,f,f,f", [a, b, c, d], dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def unpacked(words, layout: gl.constexpr):
    """Words of four e4m3, (rows, keys // 4), as a left operand (rows, keys); moves no register."""
    pairs = gl.join(words, words)
    fours = gl.join(pairs, pairs).reshape([words.shape[0], 4 * words.shape[1]])
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r,r,r,r", [gl.convert_layout(fours, layout)],
        dtype=gl.float8e4nv, is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def descale(pointer, at):
    """One scale of a (batch, heads_kv) tensor; 1 where there is none, whose address is 0."""
    given = pointer.to(gl.int64) != 0
    return gl.load(pointer + at, mask=given, other=1.0)
