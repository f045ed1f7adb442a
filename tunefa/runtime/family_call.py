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
    if not _may_have(tensors, options):
        return None
    q, q_steps, q_type, q_at, k, k_steps, k_type, k_at, v, v_steps, v_type, v_at, aligned = key[:13]
    if not aligned or not len(q) == len(k) == len(v) == 4:
        return None
    if options.layout == "bshd":
        (batch, rows, heads, head_dim), (q0, q2, q1, q3) = q, q_steps
        (batch_k, keys, heads_kv, dim_k), (k0, k2, k1, k3) = k, k_steps
        (batch_v, keys_v, heads_v, head_dim_v), (v0, v2, v1, v3) = v, v_steps
    else:
        (batch, heads, rows, head_dim), (q0, q1, q2, q3) = q, q_steps
        (batch_k, heads_kv, keys, dim_k), (k0, k1, k2, k3) = k, k_steps
        (batch_v, heads_v, keys_v, head_dim_v), (v0, v1, v2, v3) = v, v_steps
    sizes = (
        (batch, heads, rows, head_dim, q0, q1, q2, q3),
        (batch_k, heads_kv, keys, dim_k, k0, k1, k2, k3),
        (batch_v, heads_v, keys_v, head_dim_v, v0, v1, v2, v3),
    )
    if not (_have_own_shapes(*sizes) and _are_strided_well(*sizes)):
        return None
    family = (
        q_type,
        k_type,
        v_type,
        q_at,
        k_at,
        v_at,
        heads,
        heads_kv,
        head_dim,
        head_dim_v,
        options,
    )
    return FamilyCall(family, Lengths(batch, rows, keys), sizes)


def _have_own_shapes(q: Sizes, k: Sizes, v: Sizes) -> bool:
    """Whether the shapes fit, and no tensor is empty."""
    return q[0] == k[0] and k[:3] == v[:3] and q[3] == k[3] and all(q[:4]) and all(v[:4])


def _are_strided_well(q: Sizes, k: Sizes, v: Sizes) -> bool:
    """Whether rows are contiguous and begin at multiples of 16 elements, no axis is expanded, and
    only the stride of batches passes 2^31."""
    _, _, _, _, q0, q1, q2, q3 = q
    _, _, _, _, k0, k1, k2, k3 = k
    _, _, _, head_dim_v, v0, v1, v2, v3 = v
    return (
        (head_dim_v | q0 | q1 | q2 | k0 | k1 | k2 | v0 | v1 | v2) % 16 == 0
        and q3 == k3 == v3 == 1
        and bool(q0 and q1 and q2 and k0 and k1 and k2 and v0 and v1 and v2)
        and max(q1, q2, k1, k2, v1, v2) < MAX_STRIDE
    )


def _may_have(tensors: Tensors, options: Options) -> bool:
    if tensors.cu_seqlens is not None or tensors.descales or tensors.q.dtype == E4M3:
        return False
    # Of short sequences a window hides nothing, which is another family.
    return options.window_left is None and options.window_right is None


def contiguous(shape: tuple[int, ...], layout: str) -> Sizes:
    """Returns the sizes of a contiguous tensor of a layout; `shape` has heads first."""
    batch, heads, rows, columns = shape
    if layout == "bhsd":
        return batch, heads, rows, columns, heads * rows * columns, rows * columns, columns, 1
    return batch, heads, rows, columns, heads * rows * columns, columns, heads * columns, 1
