"""Online softmax of 64 rows in the registers of a warpgroup, in units of log2."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from tunefa.kernels.gluon.layouts import lane_sum_layout, row_layout, side_by_side


@gluon.jit
def no_row_sum(N: gl.constexpr, DEFER_ROW_SUM: gl.constexpr):
    """Returns the row sums before the first block of N columns."""
    if DEFER_ROW_SUM:
        row_sum = gl.full([64, 4], 0.0, gl.float32, lane_sum_layout())
    else:
        row_sum = gl.full([64], 0.0, gl.float32, row_layout(N))
    return row_sum


@gluon.jit
def whole_row_sum(row_sum, N: gl.constexpr, DEFER_ROW_SUM: gl.constexpr):
    """Returns the row sums after the last block, one per row."""
    if DEFER_ROW_SUM:
        row_sum = gl.convert_layout(gl.sum(row_sum, 1), row_layout(N))
    return row_sum


@gluon.jit
def tanh(x):
    """The hardware's tanh of fp32: relative error up to 2^-11 (PTX ISA, tanh.approx.f32)."""
    return gl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )


@gluon.jit
def online_softmax(
    s, row_max, row_sum, scale_log2,
    MASKED: gl.constexpr, DEFER_ROW_SUM: gl.constexpr, RESCALE_THRESHOLD: gl.constexpr,
    P_LOG2: gl.constexpr,
    EX2_EMULATION_FREQ: gl.constexpr,
):  # fmt: skip
    """Returns (p, row_max, row_sum, row_scale) after one block of scores, maxima in units of log2.

    FlashAttention-2, arXiv:2307.08691, algorithm 1, lines 8 and 9. What was summed before has to be
    multiplied by row_scale.
    DEFER_ROW_SUM: a row's sum stays spread over its four lanes until `whole_row_sum`, which saves
    two shuffles per block and row.
    RESCALE_THRESHOLD: a maximum stays until scores exceed it by more; row_scale is then nearly
    always 1, and p is at most 2^RESCALE_THRESHOLD. Any shift of the exponents gives the same
    quotient in the end (as FlashAttention-4 does on Blackwell).
    P_LOG2: maxima are lowered by this much, so that p and row_sum are 2^P_LOG2 times as large.
    """
    N: gl.constexpr = s.shape[1]
    block_max = gl.max(s, 1) * scale_log2
    if P_LOG2:
        block_max -= P_LOG2
    if RESCALE_THRESHOLD:
        new_max = gl.where(block_max > row_max + RESCALE_THRESHOLD, block_max, row_max)
    else:
        new_max = gl.maximum(row_max, block_max)
    shift = new_max
    if MASKED:  # a row that has seen no key yet: -inf - -inf would be NaN
        shift = gl.where(new_max == -float("inf"), 0.0, new_max)
    p = exp2(s * scale_log2 - shift[:, None], EX2_EMULATION_FREQ)
    row_scale = gl.exp2(row_max - shift)
    if DEFER_ROW_SUM:
        lanes: gl.constexpr = lane_sum_layout()
        pairs = gl.sum(gl.sum(p.reshape([64, N // 8, 4, 2]), 3), 1)
        rows = gl.convert_layout(row_scale, gl.SliceLayout(1, lanes), assert_trivial=True)
        row_sum = row_sum * rows[:, None] + gl.convert_layout(pairs, lanes, assert_trivial=True)
    else:
        row_sum = row_sum * row_scale + gl.sum(p, 1)
    return p, new_max, row_sum, row_scale


# -------------------------------------------------------------------------------- exponentials


@gluon.jit
def exp2(x, FREQ: gl.constexpr):
    """Returns 2^x of 64 x N. One in FREQ columns is computed by multiplications and additions,
    which have units of their own; none if FREQ is 0."""
    if FREQ == 0:
        y = gl.exp2(x)
    elif FREQ == 1:
        y = emulated_exp2(x)
    else:
        N: gl.constexpr = x.shape[1]
        left, right = x.reshape([64, 2, N // 2]).permute((0, 2, 1)).split()
        y = side_by_side(gl.exp2(left), exp2(right, FREQ // 2))
        y = gl.convert_layout(y, x.type.layout, assert_trivial=True)
    return y


_ROUNDING = gl.constexpr(1.5 * 2**23)
"""Added to a small fp32 it leaves the nearest integer in the lowest bits."""


@gluon.jit
def emulated_exp2(x):
    """Returns 2^x for x up to 100, and 0 for what is below -127.

    Cody and Waite, "Software Manual for the Elementary Functions" (1980), chapter 6: the nearest
    integer goes to the exponent, a polynomial of the rest gives the mantissa.
    """
    x = gl.maximum(x, -127.0)
    shifted = x + _ROUNDING
    rest = x - (shifted - _ROUNDING)
    # Of the cubics that are 1 at 0 this one has the least relative error between -1/2 and 1/2,
    # 1.0e-4. The value at 0 must be 1: any other polynomial turns -127 into NaN.
    y = ((0.0550091 * rest + 0.2422110) * rest + 0.6932829) * rest + 1.0
    bits = y.to(gl.int32, bitcast=True) + (shifted.to(gl.int32, bitcast=True) << 23)
    return bits.to(gl.float32, bitcast=True)


# ------------------------------------------------------------------------------------ rescaling


@gluon.jit
def rescale_where_moved(acc, row_scale):
    """Returns an accumulator with each row times its row_scale.

    A warp whose row_scales are all 1 branches past the products. Gluon's tensors cannot express
    this branch, PTX can.
    """
    N: gl.constexpr = acc.shape[1]
    row_scale = gl.convert_layout(row_scale, row_layout(N))
    moved = gl.inline_asm_elementwise(
        _VOTE, "=r,=r,f,f", [row_scale], gl.int32, is_pure=False, pack=2
    )  # the same for all rows of a warp
    # One asm takes a thread's elements in any order: each element comes with its own row_scale.
    AT_ONCE: gl.constexpr = min(32, N // 2)
    ASM: gl.constexpr = _products(AT_ONCE)
    CONSTRAINTS: gl.constexpr = _in_place(AT_ONCE)
    return gl.inline_asm_elementwise(
        ASM, CONSTRAINTS, [acc, row_scale[:, None], moved[:, None]], gl.float32,
        is_pure=False, pack=AT_ONCE,
    )  # fmt: skip


_VOTE = gl.constexpr("""{
    .reg .pred moved;
    setp.neu.f32 moved, $2, 0f3F800000;
    setp.neu.or.f32 moved, $3, 0f3F800000, moved;
    vote.sync.any.pred moved, moved, 0xffffffff;
    selp.b32 $0, 1, 0, moved;
    selp.b32 $1, 1, 0, moved;
}""")


@gluon.constexpr_function
def _products(n):
    """PTX: n elements times n row_scales, unless the flags that come last are 0."""
    products = [f"mul.f32 ${i}, ${i}, ${2 * n + i};" for i in range(n)]
    begin = f"{{ .reg .pred still; setp.eq.b32 still, ${3 * n}, 0; @still bra DONE;"
    return "\n".join([begin, *products, "DONE: }"])


@gluon.constexpr_function
def _in_place(n):
    """The constraints of `_products`: results lie where the elements were."""
    return ",".join(["=f"] * n + [str(i) for i in range(n)] + ["f"] * n + ["r"] * n)
