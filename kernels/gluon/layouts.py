"""Layouts of registers and views of shared memory that Gluon kernels for Hopper share."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.constexpr_function
def wgmma_layout(columns, bits=16):
    """Registers of a WGMMA accumulator of 64 x columns (PTX ISA, wgmma.mma_async).

    They are the same for operands of any number of `bits`, but the compiler tells them apart.
    """
    shape = [16, columns, 256 // bits]
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=shape)


@gluon.constexpr_function
def operand_layout(columns, bits):
    """Registers of a left WGMMA operand that goes into an accumulator of 64 x columns."""
    parent = wgmma_layout(columns, bits)
    return gl.DotOperandLayout(operand_index=0, parent=parent, k_width=32 // bits)


@gluon.constexpr_function
def lane_sum_layout():
    """64 rows x 4: what is left of a WGMMA accumulator when each lane has summed its columns."""
    lanes = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([[8, 0]], lanes, [[16, 0], [32, 0]], [], [64, 4])


@gluon.constexpr_function
def row_layout(columns):
    """One value per row of a WGMMA accumulator."""
    return gl.SliceLayout(1, wgmma_layout(columns))


@gluon.jit
def as_matrix(tile):
    """Views (1, ..., heads, rows, columns) in shared memory as (heads * rows, columns)."""
    return tile.reshape([tile.shape[-3] * tile.shape[-2], tile.shape[-1]])


@gluon.jit
def side_by_side(left, right):
    """Returns (64, N) twice as (64, 2 N); this moves no register."""
    return gl.join(left, right).permute((0, 2, 1)).reshape([64, 2 * left.shape[1]])
