"""Dense calls of one family, which differ in batch and lengths only: what decides the family, and
what is different."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from tunefa.compile.launch.resizable import Sizes
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.cells import Lengths

MAX_STRIDE = 2**31


class FamilyCall(NamedTuple):
    """A dense call of a family, without its tensors."""

    family: Hashable
    """Equal for calls of one family."""
    lengths: Lengths
    sizes: tuple[Sizes, Sizes, Sizes]
    """The sizes of q, k and v with heads first: shape, then strides, in elements."""


def family_call(tensors: Tensors, options: Options, key: Any) -> FamilyCall | None:
    """Returns what plans of a family need of a call; None for calls that are planned one by one:
    those with packed sequences, e4m3, a window, unaligned tensors, or wrong arguments. `key` is the
    call's `plan_key`, which has most of it."""
    if tensors.cu_seqlens is not None or tensors.descales:
        return None
    # Of short sequences a window hides nothing, which is another family.
    if options.window_left is not None or options.window_right is not None:
        return None
    q, q_steps, q_type, q_at, k, k_steps, k_type, k_at, v, v_steps, v_type, v_at, aligned = key[:13]
    if not aligned or q_type == E4M3 or not len(q) == len(k) == len(v) == 4:
        return None
    if options.layout == "bshd":
        (batch, rows, heads, head_dim), (q0, q2, q1, q3) = q, q_steps
        (batch_k, keys, heads_kv, dim_k), (k0, k2, k1, k3) = k, k_steps
        (batch_v, keys_v, heads_v, head_dim_v), (v0, v2, v1, v3) = v, v_steps
    else:
        (batch, heads, rows, head_dim), (q0, q1, q2, q3) = q, q_steps
        (batch_k, heads_kv, keys, dim_k), (k0, k1, k2, k3) = k, k_steps
        (batch_v, heads_v, keys_v, head_dim_v), (v0, v1, v2, v3) = v, v_steps
    if not (
        # The shapes fit, and no tensor is empty.
        batch == batch_k == batch_v
        and keys == keys_v
        and heads_kv == heads_v
        and head_dim == dim_k
        and (batch and rows and heads and head_dim and keys and heads_kv and head_dim_v)
        # Rows are contiguous and begin at multiples of 16 elements, no axis is expanded, and only
        # the stride of batches passes 2^31.
        and q3 == k3 == v3 == 1
        and (head_dim_v | q0 | q1 | q2 | k0 | k1 | k2 | v0 | v1 | v2) % 16 == 0
        and (q0 and q1 and q2 and k0 and k1 and k2 and v0 and v1 and v2)
        and (q1 | q2 | k1 | k2 | v1 | v2) < MAX_STRIDE
    ):
        return None
    family = (
        *(q_type, k_type, v_type, q_at, k_at, v_at, heads, heads_kv, head_dim, head_dim_v),
        options,
    )
    sizes = (
        (batch, heads, rows, head_dim, q0, q1, q2, q3),
        (batch, heads_kv, keys, head_dim, k0, k1, k2, k3),
        (batch, heads_kv, keys, head_dim_v, v0, v1, v2, v3),
    )
    return FamilyCall(family, Lengths(batch, rows, keys), sizes)


def contiguous(shape: tuple[int, ...], layout: str) -> Sizes:
    """Returns the sizes of a contiguous tensor of a layout; `shape` has heads first."""
    batch, heads, rows, columns = shape
    if layout == "bhsd":
        return batch, heads, rows, columns, heads * rows * columns, rows * columns, columns, 1
    return batch, heads, rows, columns, heads * rows * columns, columns, heads * columns, 1
