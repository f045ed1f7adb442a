"""Matrix products of attention on Hopper, in Gluon: scores, and outputs in one piece or two.

A head dimension between two powers of two is split into the lower one and a rest (see `Ring`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from tunefa.kernels.gluon.hopper import operand_layout, row_layout, wgmma_layout


@gluon.jit
def scores(q, q_slot, k, k_slot, N: gl.constexpr):
    """Starts q @ k^T for the first N keys of a block that has arrived."""
    k_tile = k.matrix(k_slot).slice(0, N).permute((1, 0))
    zeros = gl.zeros([64, N], gl.float32, wgmma_layout(N))
    s = warpgroup_mma(q.matrix(q_slot), k_tile, zeros, use_acc=False, is_async=True)
    if k.REST:
        k_rest = k.rest(k_slot).slice(0, N).permute((1, 0))
        s = warpgroup_mma(q.rest(q_slot), k_rest, s, is_async=True)
    return s


@gluon.jit
def outputs(p, v, slot, acc):
    """Starts acc + p @ v, in two pieces where v has a rest."""
    acc, acc_rest = acc
    if v.REST:
        p_rest = gl.convert_layout(p, operand_layout(v.REST, p.dtype.primitive_bitwidth))
        acc_rest = warpgroup_mma(p_rest, v.rest(slot), acc_rest, is_async=True)
    acc = warpgroup_mma(p, v.matrix(slot), acc, is_async=True)
    return acc, acc_rest


@gluon.jit
def arrived(acc, v):
    """What `outputs` started, when all of it is there."""
    acc, acc_rest = acc
    if v.REST:
        acc, acc_rest = warpgroup_mma_wait(0, [acc, acc_rest])
    else:
        acc = warpgroup_mma_wait(0, [acc])
    return acc, acc_rest


@gluon.jit
def scaled(acc, by_row, v):
    """An output with each row times a number."""
    acc, acc_rest = acc
    acc = acc * gl.convert_layout(by_row, row_layout(acc.shape[1]))[:, None]
    if v.REST:
        acc_rest = acc_rest * gl.convert_layout(by_row, row_layout(v.REST))[:, None]
    return acc, acc_rest


@gluon.jit
def no_output(v):
    """An output before the first block."""
    COLUMNS: gl.constexpr = v.tiles.shape[-1]
    acc = gl.zeros([64, COLUMNS], gl.float32, wgmma_layout(COLUMNS))
    acc_rest = 0
    if v.REST:
        acc_rest = gl.zeros([64, v.REST], gl.float32, wgmma_layout(v.REST))
    return acc, acc_rest


@gluon.jit
def as_operand(p, v):
    """Probabilities in the registers and the dtype in which they enter p @ v."""
    columns: gl.constexpr = v.tiles.shape[-1]
    dtype: gl.constexpr = v.tiles.dtype
    layout: gl.constexpr = operand_layout(columns, dtype.primitive_bitwidth)
    return gl.convert_layout(p.to(dtype), layout)


@gluon.jit
def scores_arrived(s, v):
    """Scores whose products were started before those of one `outputs`."""
    COUNT: gl.constexpr = 2 if v.REST else 1
    return warpgroup_mma_wait(COUNT, [s])
