"""Calls over a cache of one family, which differ in the batch, in the size of the cache and in
strides only: what decides the family, and what is different."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from tunefa.compile.launch.lengths import CacheSizes
from tunefa.compile.launch.resizable import Sizes
from tunefa.runtime.decode_call import CacheKey, CacheOptions
from tunefa.runtime.family_call import MAX_STRIDE, contiguous


class CacheFamilyCall(NamedTuple):
    """A call over a cache of a family, without its tensors."""

    family: Hashable
    """Equal for calls of one family."""
    sizes: CacheSizes


def family_call(key: CacheKey, options: CacheOptions) -> CacheFamilyCall | None:
    """Returns what plans of a family need of a call with this `decode_call.key`; None for calls
    that are planned one by one: those with unaligned or expanded tensors, with a common prefix,
    with a window that hides nothing, or with wrong arguments. What all calls of a family have in
    common is checked with its first one.
    """
    q, q_steps, q_type, q_at, k, k_steps, k_type, k_at, v, v_steps, v_type, v_at = key[:12]
    aligned, shares_rows, _, lengths, lengths_step, *of_lengths, table, out, others = key[12:]
    shapes = (q, k, v) if out is None else (q, k, v, out[0])
    if not aligned or any(len(each) != 4 for each in shapes) or options.shared_prefix:
        return None
    is_heads_first = options.layout == "bhsd"
    q, k, v = (
        _sizes(q, q_steps, is_heads_first),
        _sizes(k, k_steps, is_heads_first),
        _sizes(v, v_steps, is_heads_first),
    )
    batch, heads, rows, head_dim, heads_kv, dim_k, dim_v = *q[:4], k[1], k[3], v[3]
    shape = batch, heads, rows, dim_v
    of_out = (
        contiguous(shape, options.layout) if out is None else _sizes(out[0], out[1], is_heads_first)
    )
    keys, table_row, of_table = (k[2], 0, None) if table is None else _paged(table, k[2], batch)
    steps, of_others = ((), None) if others is None else _others(others, batch)
    if not (
        (k[0] == batch or table is not None)
        and k[:3] == v[:3]
        and of_out[:4] == shape
        and (lengths, lengths_step) == ((batch,), (1,))
        and steps is not None
        and batch and k[0] and keys
        and (options.window_left is None or options.window_left < keys - 1)
        and _are_strided_well(q, k, v, of_out)
    ):  # fmt: skip
        return None
    family = (
        *(q_type, q_at, k_type, k_at, v_type, v_at, heads, rows, head_dim, heads_kv, dim_k, dim_v),
        *(shares_rows, options, *of_lengths, of_table, out and out[2:], of_others),
    )
    return CacheFamilyCall(family, CacheSizes(batch, keys, table_row, (q, k, v, of_out), steps))


def _sizes(shape: Any, steps: Any, is_heads_first: bool) -> Sizes:
    """Returns the sizes of a tensor with four axes with heads first."""
    if is_heads_first:
        return *shape, *steps
    batch, rows, heads, columns = shape
    of_batch, of_row, of_head, step = steps
    return batch, heads, rows, columns, of_batch, of_head, of_row, step


def _are_strided_well(*tensors: Sizes) -> bool:
    """Whether rows are contiguous and begin at multiples of 16 elements, no axis is expanded, and
    only the stride of batches or pages passes 2^31."""
    for _, _, _, _, of_batch, of_head, of_row, step in tensors:
        if step != 1 or (of_batch | of_head | of_row) % 16 or not (of_batch and of_head and of_row):
            return False
        if of_head >= MAX_STRIDE or of_row >= MAX_STRIDE:
            return False
    return True


def _paged(table: Any, page_size: int, batch: int) -> tuple[int, int, Hashable]:
    """Returns (keys, elements of a row, what the family has of it) of a block table; no keys where
    it does not fit."""
    shape, steps, *kind = table
    if len(shape) != 2 or shape[0] != batch or steps[1] != 1 or not 0 < steps[0] < MAX_STRIDE:
        return 0, 0, None
    return page_size * shape[1], steps[0], (page_size, *kind)


def _others(others: Any, batch: int) -> tuple[tuple[int, ...] | None, Hashable]:
    """Returns the strides of the factors, and what the family has of sinks and factors; None for
    factors that do not fit."""
    sinks, *factors = others
    steps: tuple[int, ...] = ()
    found: list[Hashable] = [sinks]
    for each in factors:
        if each is not None:
            shape, own, *kind = each
            if len(shape) != 2 or shape[0] != batch or (0 in own and any(own)):
                return None, None
            steps = *steps, *own
            found.append((shape[1], own, *kind))
        else:
            found.append(None)
    return steps, tuple(found)
