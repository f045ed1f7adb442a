"""The blocks of a head that TMA copies: their widths, their types and their descriptors.

A head dimension is cut into a power of two of columns and a rest (see `Pipeline` in pipeline.py).
"""

from tunefa.spec.rounding import next_pow2

_TYPES = {"bf16": "bf16", "fp16": "fp16", "e4m3": "fp8e4nv"}
"""The compiler's name of a dtype."""
ROW_LIMIT = 2**30
"""The length of the axis of rows in the descriptor of a packed tensor."""
_SEQUENCES = 2**31 - 2**16
"""The length of the two axes whose coordinates select a sequence."""


def split(head_dim):
    """Returns (columns, rest): `columns` is the largest power of two from 64 on that fits into
    head_dim; `rest` is what is left over, rounded up to a power of two from 16 on.

    Where the rest is as wide as the columns, both become one power of two.
    """
    whole = max(64, next_pow2(head_dim + 1) // 2)
    rest = max(16, next_pow2(head_dim - whole)) if head_dim > whole else 0
    return (2 * whole, 0) if rest == whole else (whole, rest)


def types(names, dtypes, blocks, packed=False):
    """Returns the signature types of `<name>_desc` for each name, then of `<name>_rest_desc`.

    `blocks` are (heads, rows, columns, rest), as in `descriptors`.
    """
    made = {}
    for suffix, is_rest in (("desc", False), ("rest_desc", True)):
        for name, dtype, block in zip(names, dtypes, blocks, strict=True):
            box = list(_box(block, is_rest, packed))
            made[f"{name}_{suffix}"] = f"tensordesc<{_TYPES[dtype]}{box}>"
    return made


def descriptors(tensors, blocks):
    """Returns a TMA descriptor of the columns of each tensor, then one of the rest of each.

    Tensors are (batch, heads, seqlen, head_dim), or packed, (rows, heads, head_dim).
    """
    made = []
    for is_rest in (False, True):
        for tensor, block in zip(tensors, blocks, strict=True):
            packed = tensor.dim() == 3
            shape, strides = _packed(tensor) if packed else (tensor.shape, tensor.stride())
            box = _box(block, is_rest, packed)
            made.append({"map": tensor, "shape": shape, "strides": strides, "box": box})
    return made


def _packed(tensor):
    """Returns shape and strides with which TMA stops at the end of any sequence of packed rows.

    With the coordinates (ROW_LIMIT, begin + length, head, ROW_LIMIT - length + row, column) the
    fourth one is outside of its axis where the sequence ends: loads give zeros there, and stores
    write nothing. The strides of the axes before it make the address right, as addresses wrap at
    2^64 (Triton's tools/ragged_tma.py). Nothing depends on the number of rows.
    """
    _, heads, head_dim = tensor.shape
    step, head_step, _ = tensor.stride()
    shape = (_SEQUENCES, _SEQUENCES, heads, ROW_LIMIT, head_dim)
    return shape, (2**34 - step, step, head_step, step, 1)


def _box(block, is_rest, packed):
    """Returns the sizes of what TMA copies at once; without a rest, its descriptor is not used."""
    heads, rows, columns, rest = block
    width = (rest or columns) if is_rest else columns
    return (1, 1, heads, rows, width) if packed else (1, heads, rows, width)
