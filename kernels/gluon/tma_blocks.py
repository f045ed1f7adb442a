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


def split(head_dim):
    """(columns, rest): the power of two from 64 on that fits into head_dim, and what is left over
    as the next power of two from 16 on, unless that makes as much as one more."""
    whole = max(64, triton.next_power_of_2(head_dim + 1) // 2)
    rest = max(16, triton.next_power_of_2(head_dim - whole)) if head_dim > whole else 0
    return (2 * whole, 0) if rest == whole else (whole, rest)


def types(names, dtypes, blocks):
    """Signature types of `<name>_desc` and `<name>_rest_desc`; blocks are (heads, rows, columns,
    rest)."""
    made = {}
    for name, dtype, (heads, rows, columns, rest) in zip(names, dtypes, blocks, strict=True):
        for desc, width in ((f"{name}_desc", columns), (f"{name}_rest_desc", rest or columns)):
            block = [1, heads, rows, width]
            made[desc] = f"tensordesc<{_TYPES[dtype][0]}{block},{_layout(dtype, block)!r}>"
    return made


def descriptors(tensors, dtypes, blocks):
    """Of the columns of each (batch, heads, seqlen, head_dim) tensor, then of the rest of each."""
    widths = [columns for _, _, columns, _ in blocks] + [
        rest or columns for _, _, columns, rest in blocks
    ]
    made = []
    each = zip(2 * tensors, 2 * dtypes, 2 * blocks, widths, strict=True)
    for tensor, dtype, (heads, rows, *_), width in each:
        block = [1, heads, rows, width]
        layout = _layout(dtype, block)
        made.append(TensorDescriptor(tensor, tensor.shape, tensor.stride(), block, layout))
    return made


def is_aligned(tensors):
    """Whether TMA may read these tensors: 16-byte multiples (CUDA C++ Programming Guide, "Tensor
    Map")."""
    return all(
        tensor.data_ptr() % 16 == 0
        and all(step * tensor.element_size() % 16 == 0 for step in tensor.stride()[:3])
        for tensor in tensors[:4]
    )


def _layout(dtype, block):
    return gl.NVMMASharedLayout.get_default_for(block, _TYPES[dtype][1])
