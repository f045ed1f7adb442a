"""Blocks of a head that TMA copies: how wide, described to the compiler and to the device.

A head dimension is cut into a power of two of columns and a rest (see `Ring` in hopper.py).
"""

import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_TYPES = {
    "bf16": ("bf16", gl.bfloat16), "fp16": ("fp16", gl.float16), "e4m3": ("fp8e4nv", gl.float8e4nv),
}  # fmt: skip
"""What the compiler and Gluon call a dtype."""
ROW_LIMIT = gl.constexpr(2**30)
"""Rows of a packed tensor, as its descriptor has them."""
_SEQUENCES = 2**31 - 2**16
"""What the coordinates that find a sequence stay below."""


def split(head_dim):
    """(columns, rest): the power of two from 64 on that fits into head_dim, and what is left over
    as the next power of two from 16 on, unless that makes as much as one more."""
    whole = max(64, triton.next_power_of_2(head_dim + 1) // 2)
    rest = max(16, triton.next_power_of_2(head_dim - whole)) if head_dim > whole else 0
    return (2 * whole, 0) if rest == whole else (whole, rest)


def types(names, dtypes, blocks, packed=False):
    """Signature types of `<name>_desc` and `<name>_rest_desc`; blocks are (heads, rows, columns,
    rest)."""
    made = {}
    for name, dtype, (heads, rows, columns, rest) in zip(names, dtypes, blocks, strict=True):
        for desc, width in ((f"{name}_desc", columns), (f"{name}_rest_desc", rest or columns)):
            block = _block(heads, rows, width, packed)
            made[desc] = f"tensordesc<{_TYPES[dtype][0]}{block},{_layout(dtype, block)!r}>"
    return made


def descriptors(tensors, dtypes, blocks):
    """Of the columns of each tensor, then of the rest of each.

    Tensors are (batch, heads, seqlen, head_dim), or packed, (rows, heads, head_dim).
    """
    widths = [columns for _, _, columns, _ in blocks] + [
        rest or columns for _, _, columns, rest in blocks
    ]
    made = []
    each = zip(2 * tensors, 2 * dtypes, 2 * blocks, widths, strict=True)
    for tensor, dtype, (heads, rows, *_), width in each:
        packed = tensor.dim() == 3
        shape, strides = _packed(tensor) if packed else (tensor.shape, tensor.stride())
        block = _block(heads, rows, width, packed)
        made.append(TensorDescriptor(tensor, shape, strides, block, _layout(dtype, block)))
    return made


def _packed(tensor):
    """Shape and strides with which TMA stops at the end of any sequence of packed rows.

    Coordinates (ROW_LIMIT, begin + length, head, ROW_LIMIT - length + row, column) leave the fourth
    axis where the sequence ends: loads give zeros there, and stores write nothing. The strides of
    the axes before have the address come out right, as that wraps at 2^64 (Triton's
    tools/ragged_tma.py). None of them depends on how many rows there are.
    """
    _, heads, head_dim = tensor.shape
    step, head_step, _ = tensor.stride()
    shape = [_SEQUENCES, _SEQUENCES, heads, ROW_LIMIT.value, head_dim]
    return shape, [2**34 - step, step, head_step, step, 1]


def _block(heads, rows, width, packed):
    """What TMA copies at once."""
    return [1, 1, heads, rows, width] if packed else [1, heads, rows, width]


def _layout(dtype, block):
    return gl.NVMMASharedLayout.get_default_for(block, _TYPES[dtype][1])
