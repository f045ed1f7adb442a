"""Matrix products of attention on Hopper, in Gluon: scores, and outputs in one piece or two.

A head dimension between two powers of two is split into the lower one and a rest (see `Ring`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from tunefa.kernels.gluon.e4m3 import packed, unpacked
from tunefa.kernels.gluon.hopper import operand_layout, rescaled, row_layout, wgmma_layout


@gluon.jit
def scores(q, q_slot, k, k_slot, N: gl.constexpr):
    """Starts q @ k^T for the first N keys of a block that has arrived."""
    k_tile = k.matrix(k_slot).slice(0, N).permute((1, 0))
    zeros = gl.zeros([64, N], gl.float32, wgmma_layout(N, k.BITS))
    s = warpgroup_mma(q.matrix(q_slot), k_tile, zeros, use_acc=False, is_async=True)
    if k.REST:
        k_rest = k.rest(k_slot).slice(0, N).permute((1, 0))
        s = warpgroup_mma(q.rest(q_slot), k_rest, s, is_async=True)
    return s


@gluon.jit
def outputs(p, v, slot, acc):
    """Starts acc + p @ v, in two pieces where v has a rest; of e4m3, p @ v alone."""
    acc, acc_rest = acc
    if v.REST:
        p_rest = gl.convert_layout(p, operand_layout(v.REST, p.dtype.primitive_bitwidth))
        acc_rest = warpgroup_mma(p_rest, v.rest(slot), acc_rest, is_async=True)
    if v.TRANSPOSED:
        p = unpacked(p, operand_layout(v.COLUMNS, v.BITS))
        zeros = gl.zeros([64, v.COLUMNS], gl.float32, wgmma_layout(v.COLUMNS, v.BITS))
        acc_rest = warpgroup_mma(p, v.matrix(slot), zeros, use_acc=False, is_async=True)
    else:
        acc = warpgroup_mma(p, v.matrix(slot), acc, is_async=True)
    return acc, acc_rest


@gluon.jit
def arrived(acc, decay, v):
    """What `outputs` started, when all of it is there.

    Of e4m3 this is where it is added to the output times `decay`: one instruction for both.
    """
    acc, acc_rest = acc
    if v.TRANSPOSED:
        rows: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
        acc = acc * gl.convert_layout(decay, rows)[:, None] + warpgroup_mma_wait(0, [acc_rest])
        acc_rest = 0
    elif v.REST:
        acc, acc_rest = warpgroup_mma_wait(0, [acc, acc_rest])
    else:
        acc = warpgroup_mma_wait(0, [acc])
    return acc, acc_rest


@gluon.jit
def scaled(acc, by_row, v):
    """An output with each row times a number."""
    acc, acc_rest = acc
    rows: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    acc = acc * gl.convert_layout(by_row, rows)[:, None]
    if v.REST:
        acc_rest = acc_rest * gl.convert_layout(by_row, row_layout(v.REST))[:, None]
    return acc, acc_rest


@gluon.jit
def decayed(acc, decay, v):
    """An output with each row times a number that is 1 for nearly all."""
    acc, acc_rest = acc
    acc = rescaled(acc, decay)
    if v.REST:
        acc_rest = rescaled(acc_rest, decay)
    return acc, acc_rest


@gluon.jit
def no_output(v):
    """An output before the first block."""
    COLUMNS: gl.constexpr = v.COLUMNS
    acc = gl.zeros([64, COLUMNS], gl.float32, wgmma_layout(COLUMNS, v.BITS))
    acc_rest = 0
    if v.REST:
        acc_rest = gl.zeros([64, v.REST], gl.float32, wgmma_layout(v.REST))
    return acc, acc_rest


@gluon.jit
def as_operand(p, v):
    """Probabilities as they wait for `outputs`, in registers and in the dtype of v."""
    if v.TRANSPOSED:
        p = packed(p)
    else:
        p = gl.convert_layout(p.to(v.tiles.dtype), operand_layout(v.COLUMNS, v.BITS))
    return p


@gluon.jit
def scores_arrived(s, v):
    """Scores whose products were started before those of one `outputs`."""
    COUNT: gl.constexpr = 2 if v.REST else 1
    s = warpgroup_mma_wait(COUNT, [s])
    return gl.convert_layout(s, wgmma_layout(s.shape[1]), assert_trivial=True)
