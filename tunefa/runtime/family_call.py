"""Dense calls of one family, which differ in batch and lengths only: what decides the family, and
what is different."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from torch import Tensor

from tunefa.compile.launch.resizable import Sizes
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.cells import Lengths

_MAX_STRIDE = 2**31


class FamilyCall(NamedTuple):
    """A dense call of a family, without its tensors."""

    family: Hashable
    """Equal for calls of one family."""
    lengths: Lengths
    sizes: tuple[Sizes, Sizes, Sizes]
    """The sizes of q, k and v with heads first: shape, then strides, in elements."""


def family_call(tensors: Tensors, options: Options) -> FamilyCall | None:
    """Returns what plans of a family need to know of a call; None for calls that are planned one by
    one.

    These have packed sequences, e4m3, a window, a tensor that is not aligned, or wrong arguments.
    """
    q, k, v, cu_seqlens, descales = tensors
    if cu_seqlens is not None or descales or q.dtype == E4M3:
        return None
    if options.window_left is not None or options.window_right is not None:
        return None  # of short sequences a window hides nothing, which is another family
    try:
        if options.layout == "bshd":
            sizes = _of_bshd(q), _of_bshd(k), _of_bshd(v)
        else:
            sizes = _of_bhsd(q), _of_bhsd(k), _of_bhsd(v)
    except ValueError:  # another number of axes
        return None
    batch, heads, rows, head_dim, q0, q1, q2, q3 = sizes[0]
    batch_k, heads_kv, keys, dim_k, k0, k1, k2, k3 = sizes[1]
    batch_v, heads_v, keys_v, head_dim_v, v0, v1, v2, v3 = sizes[2]
    mixed = q.data_ptr() | k.data_ptr() | v.data_ptr() | head_dim_v
    if (
        (mixed | q0 | q1 | q2 | k0 | k1 | k2 | v0 | v1 | v2) % 16
        or not batch == batch_k == batch_v
        or not (heads_kv == heads_v and keys == keys_v and head_dim == dim_k)
        or not q3 == k3 == v3 == 1
        or not (batch and heads and heads_kv and rows and keys and head_dim and head_dim_v)
        or not (q0 and q1 and q2 and k0 and k1 and k2 and v0 and v1 and v2)
        or max(q1, q2, k1, k2, v1, v2) >= _MAX_STRIDE
    ):
        return None
    family = (
        *(q.dtype, k.dtype, v.dtype, q.get_device(), k.get_device(), v.get_device()),
        *(heads, heads_kv, head_dim, head_dim_v),
        options,
    )
    return FamilyCall(family, Lengths(batch, rows, keys), sizes)


def _of_bshd(tensor: Tensor) -> Sizes:
    batch, rows, heads, columns = tensor.shape
    of_batch, of_row, of_head, step = tensor.stride()
    return batch, heads, rows, columns, of_batch, of_head, of_row, step


def _of_bhsd(tensor: Tensor) -> Sizes:
    batch, heads, rows, columns = tensor.shape
    of_batch, of_head, of_row, step = tensor.stride()
    return batch, heads, rows, columns, of_batch, of_head, of_row, step


def contiguous(shape: tuple[int, ...], layout: str) -> Sizes:
    """Returns the sizes of a contiguous tensor of a layout; `shape` has heads first."""
    batch, heads, rows, columns = shape
    if layout == "bhsd":
        return batch, heads, rows, columns, heads * rows * columns, rows * columns, columns, 1
    return batch, heads, rows, columns, heads * rows * columns, columns, heads * columns, 1
