"""Blocks of a head that TMA copies: how wide, described to the compiler and to the device.

A head dimension is cut into a power of two of columns and a rest (see `Ring` in hopper.py).
"""

import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

ROW_LIMIT = gl.constexpr(2**30)
"""Rows of a packed tensor, as its descriptor has them."""
_SEQUENCES = 2**31 - 2**16
"""What the coordinates that find a sequence stay below."""
_GLUON_TYPES = {"bf16": gl.bfloat16, "fp16": gl.float16}


def split(head_dim):
    """(columns, rest): the power of two from 64 on that fits into head_dim, and what is left over
    as the next power of two from 16 on, unless that makes as much as one more."""
    whole = max(64, triton.next_power_of_2(head_dim + 1) // 2)
    rest = max(16, triton.next_power_of_2(head_dim - whole)) if head_dim > whole else 0
    return (2 * whole, 0) if rest == whole else (whole, rest)


def types(names, dtype, blocks, packed=False):
    """Signature types of `<name>_desc` and `<name>_rest_desc`; blocks are (rows, columns, rest)."""
    made, ones = {}, _ones(packed)
    for name, (rows, columns, rest) in zip(names, blocks, strict=True):
        for desc, width in ((f"{name}_desc", columns), (f"{name}_rest_desc", rest or columns)):
            block = [*ones, rows, width]
            made[desc] = f"tensordesc<{dtype}{block},{_layout(dtype, block)!r}>"
    return made


def descriptors(tensors, dtype, blocks):
    """Of the columns of each tensor, then of the rest of each.

    Tensors are (batch, heads, seqlen, head_dim), or packed, (rows, heads, head_dim).
    """
    widths = [columns for _, columns, _ in blocks] + [
        rest or columns for _, columns, rest in blocks
    ]
    made = []
    for tensor, (rows, _, _), width in zip(2 * tensors, 2 * blocks, widths, strict=True):
        shape, strides = tensor.shape, tensor.stride()
        if tensor.dim() == 3:
            shape, strides = _packed(tensor)
        block = [*_ones(tensor.dim() == 3), rows, width]
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


def _ones(packed):
    """The axes of a block before its rows."""
    return [1, 1, 1] if packed else [1, 1]


def is_aligned(tensors):
    """Whether TMA may read these tensors: 16-byte multiples (CUDA C++ Programming Guide, "Tensor
    Map")."""
    return all(
        tensor.data_ptr() % 16 == 0
        and all(step * tensor.element_size() % 16 == 0 for step in tensor.stride()[:-1])
        for tensor in tensors[:4]
    )


def _layout(dtype, block):
    return gl.NVMMASharedLayout.get_default_for(block, _GLUON_TYPES[dtype])
