"""Matrix products of attention on Hopper, in Gluon: scores, and outputs in one piece or two.

A head dimension between two powers of two is split into the lower one and a rest (see `Pipeline`).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait
from tunefa.kernels.gluon.e4m3 import pack, unpack
from tunefa.kernels.gluon.layouts import operand_layout, row_layout, wgmma_layout
from tunefa.kernels.gluon.softmax import rescale_where_moved


@gluon.jit
def start_scores(q, q_stage, k, k_stage, N: gl.constexpr):
    """Starts q @ k^T for the first N keys of a block that has arrived."""
    k_tile = k.matrix(k_stage).slice(0, N).permute((1, 0))
    zeros = gl.zeros([64, N], gl.float32, wgmma_layout(N, k.BITS))
    s = warpgroup_mma(q.matrix(q_stage), k_tile, zeros, use_acc=False, is_async=True)
    if k.REST:
        k_rest = k.rest(k_stage).slice(0, N).permute((1, 0))
        s = warpgroup_mma(q.rest(q_stage), k_rest, s, is_async=True)
    return s


@gluon.jit
def wait_scores(s, v):
    """Waits for scores that were started before one `start_outputs`, which goes on."""
    COUNT: gl.constexpr = 2 if v.REST else 1
    s = warpgroup_mma_wait(COUNT, [s])
    return gl.convert_layout(s, wgmma_layout(s.shape[1]), assert_trivial=True)


@gluon.jit
def no_output(v):
    """Returns the output before the first block."""
    COLUMNS: gl.constexpr = v.COLUMNS
    acc = gl.zeros([64, COLUMNS], gl.float32, wgmma_layout(COLUMNS, v.BITS))
    acc_rest = 0
    if v.REST:
        acc_rest = gl.zeros([64, v.REST], gl.float32, wgmma_layout(v.REST))
    return acc, acc_rest


@gluon.jit
def start_outputs(p, v, stage, acc):
    """Starts acc + p @ v, in two pieces where v has a rest; with e4m3 it starts p @ v alone."""
    acc, acc_rest = acc
    if v.REST:
        p_rest = gl.convert_layout(p, operand_layout(v.REST, p.dtype.primitive_bitwidth))
        acc_rest = warpgroup_mma(p_rest, v.rest(stage), acc_rest, is_async=True)
    if v.TRANSPOSED:
        p = unpack(p, operand_layout(v.COLUMNS, v.BITS))
        zeros = gl.zeros([64, v.COLUMNS], gl.float32, wgmma_layout(v.COLUMNS, v.BITS))
        acc_rest = warpgroup_mma(p, v.matrix(stage), zeros, use_acc=False, is_async=True)
    else:
        acc = warpgroup_mma(p, v.matrix(stage), acc, is_async=True)
    return acc, acc_rest


@gluon.jit
def wait_outputs(acc, row_scale, v):
    """Waits for all products and returns the output with p @ v added.

    Two-level accumulation of e4m3: p @ v of this block is added in fp32 to the output times
    `row_scale`, one instruction for both.
    """
    acc, acc_rest = acc
    if v.TRANSPOSED:
        rows: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
        acc = acc * gl.convert_layout(row_scale, rows)[:, None] + warpgroup_mma_wait(0, [acc_rest])
        acc_rest = 0
    elif v.REST:
        acc, acc_rest = warpgroup_mma_wait(0, [acc, acc_rest])
    else:
        acc = warpgroup_mma_wait(0, [acc])
    return acc, acc_rest


@gluon.jit
def scale_output(acc, factor, v):
    """Returns an output with each row times a number."""
    acc, acc_rest = acc
    rows: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    acc = acc * gl.convert_layout(factor, rows)[:, None]
    if v.REST:
        acc_rest = acc_rest * gl.convert_layout(factor, row_layout(v.REST))[:, None]
    return acc, acc_rest


@gluon.jit
def rescale_output(acc, row_scale, v):
    """Returns an output with each row times its row_scale, which is 1 for nearly all rows."""
    acc, acc_rest = acc
    acc = rescale_where_moved(acc, row_scale)
    if v.REST:
        acc_rest = rescale_where_moved(acc_rest, row_scale)
    return acc, acc_rest


@gluon.jit
def as_operand(p, v):
    """Returns probabilities in registers and in the dtype of v, as they wait for
    `start_outputs`."""
    if v.TRANSPOSED:
        p = pack(p)
    else:
        p = gl.convert_layout(p.to(v.tiles.dtype), operand_layout(v.COLUMNS, v.BITS))
    return p
