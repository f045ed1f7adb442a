"""8-bit attention on Hopper: V transposed, the order of its keys, and the scales of each head.

WGMMA reads 8-bit operands along the summed axis only (PTX ISA, wgmma.mma_async: only matrices of 16
bits may be transposed), so p @ v needs V^T, which another kernel writes first.

The keys of V^T are in the order in which p lies in registers. A lane holds 2 of each 8 columns of a
WGMMA accumulator, and 4 consecutive ones of each 16 columns of an 8-bit left operand. If the bits
of a column of the accumulator are c3 c2 c1 c0, lane c2 c1 holds the columns with any c3 and c0.
Column c2 c1 c3 c0 of the operand is in the same lane, so nothing moves between lanes.

The price is that p is rounded: emulated block by block on normal inputs of 1,024 and 8,192 keys,
the output is 2.4e-2 to 2.6e-2 off fp64 in relative norm, where p in bf16 gives 2.2e-3 to 2.3e-3.

Hopper's tensor cores keep about 14 bits of an 8-bit product's sum and cut off the rest
(DeepSeek-V3, arXiv:2412.19437, section 3.5.2): after 16,384 keys a fourth of the output can be
missing. So this kernel accumulates on two levels, as DeepGEMM does: each block's p @ v is a sum of
its own, which is then added in fp32 (`start_outputs` and `wait_outputs` in products.py).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def p_log2(E4M3):
    """Probabilities are multiplied by two to this power before they are rounded.

    e4m3 ends at 448 and has fewer bits below 2^-6 (OCP 8-bit Floating Point Specification 1.0), so
    probabilities up to 2^8 keep all of theirs down to 2^-14 (FlashAttention-3's max_offset).
    """
    return 8 if E4M3 else 0


@gluon.jit
def pack(p):
    """Rounds fp32 (rows, keys) to words of four e4m3, (rows, keys // 4), keys in the order of V^T.

    They are words because a loop that carries 8-bit values would pack and unpack them each time.
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
def unpack(words, layout: gl.constexpr):
    """Returns words of four e4m3, (rows, keys // 4), as a left operand (rows, keys); this moves no
    register."""
    pairs = gl.join(words, words)
    fours = gl.join(pairs, pairs).reshape([words.shape[0], 4 * words.shape[1]])
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r,r,r,r", [gl.convert_layout(fours, layout)],
        dtype=gl.float8e4nv, is_pure=True, pack=4,
    )  # fmt: skip


@gluon.jit
def descale(pointer, at):
    """Returns one scale of a (batch, heads_kv) tensor; 1 where there is no tensor (address 0)."""
    given = pointer.to(gl.int64) != 0
    return gl.load(pointer + at, mask=given, other=1.0)
