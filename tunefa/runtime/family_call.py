"""Dense calls of one family, which differ in batch and lengths only: what decides the family, and
what is different."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from tunefa.compile.launch.resizable import Sizes
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime.call import PACKED, Options
from tunefa.runtime.cells import Lengths
from tunefa.runtime.plan_key import DENSE_KEY

MAX_STRIDE = 2**31


class FamilyCall(NamedTuple):
    """A dense call of a family, without its tensors."""

    family: Hashable
    """Equal for calls of one family."""
    lengths: Lengths
    sizes: tuple[Sizes, Sizes, Sizes]
    """The sizes of q, k and v with heads first: shape, then strides, in elements."""


def family_call(key: Any, options: Options) -> FamilyCall | None:
    """Returns what plans of a family need of a call; None for calls that are planned one by one:
    those with packed sequences, e4m3, a window, unaligned tensors, or wrong arguments. `key` is the
    call's `plan_key`, which has most of it."""
    if options.layout == PACKED or len(key) != DENSE_KEY or key[2] == E4M3:
        return None
    # Of short sequences a window hides nothing, which is another family.
    if options.window_left is not None or options.window_right is not None:
        return None
    _, _, q_type, q_at, _, _, k_type, k_at, _, _, v_type, v_at, aligned, *_ = key
    sizes = of_tensors(key, options.layout) if all(aligned) else None
    if sizes is None:
        return None
    q, k, v = sizes
    batch, heads, rows, head_dim, *_ = q
    _, heads_kv, keys, head_dim_k, *_ = k
    if not (q[0] == k[0] and head_dim == head_dim_k and rows and heads and head_dim):
        return None
    types = q_type, k_type, v_type, q_at, k_at, v_at, heads, heads_kv, head_dim, v[3]
    family = types, options
    return FamilyCall(family, Lengths(batch, rows, keys), sizes)


def of_tensors(key: Any, layout: str) -> tuple[Sizes, Sizes, Sizes] | None:
    """Returns the sizes of q, k and v, which have their shapes and strides at 0, 4 and 8 of a key;
    None unless k and v fit, all three have four axes, and kernels can read them.

    For that rows must be contiguous and begin at multiples of 16 elements, no axis may be expanded,
    no tensor empty, and only the stride of batches, or of pages, may pass 2^31.
    """
    q, q_steps, _, _, k, k_steps, _, _, v, v_steps = key[:10]
    if not len(q) == len(k) == len(v) == 4:
        return None
    if layout == "bshd":
        (batch, rows, heads, head_dim), (q0, q2, q1, q3) = q, q_steps
        (pages, keys, heads_kv, dim_k), (k0, k2, k1, k3) = k, k_steps
        (pages_v, keys_v, heads_v, dim_v), (v0, v2, v1, v3) = v, v_steps
    else:
        (batch, heads, rows, head_dim), (q0, q1, q2, q3) = q, q_steps
        (pages, heads_kv, keys, dim_k), (k0, k1, k2, k3) = k, k_steps
        (pages_v, heads_v, keys_v, dim_v), (v0, v1, v2, v3) = v, v_steps
    if not (
        (pages == pages_v and keys == keys_v and heads_kv == heads_v)
        and (batch and pages and keys and heads_kv and dim_v)
        and (q3 == k3 == v3 == 1 and (dim_v | q0 | q1 | q2 | k0 | k1 | k2 | v0 | v1 | v2) % 16 == 0)
        and (q0 and q1 and q2 and k0 and k1 and k2 and v0 and v1 and v2)
        and (q1 | q2 | k1 | k2 | v1 | v2) < MAX_STRIDE
    ):
        return None
    return (
        (batch, heads, rows, head_dim, q0, q1, q2, q3),
        (pages, heads_kv, keys, dim_k, k0, k1, k2, k3),
        (pages, heads_kv, keys, dim_v, v0, v1, v2, v3),
    )


def of_heads(shape: tuple[int, ...], steps: tuple[int, ...], layout: str) -> Sizes:
    """Returns the sizes of a tensor of four axes in a layout."""
    if layout == "bhsd":
        return *shape, *steps
    (batch, rows, heads, columns), (of_batch, of_row, of_head, step) = shape, steps
    return batch, heads, rows, columns, of_batch, of_head, of_row, step


def contiguous(shape: tuple[int, ...], layout: str) -> Sizes:
    """Returns the sizes of a contiguous tensor of a layout; `shape` has heads first."""
    batch, heads, rows, columns = shape
    if layout == "bhsd":
        return batch, heads, rows, columns, heads * rows * columns, rows * columns, columns, 1
    return batch, heads, rows, columns, heads * rows * columns, columns, heads * columns, 1
