"""Calls over a cache of one family, which differ in the batch, in the size of the cache and in
strides only: what decides the family, and what is different."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

from tunefa.compile.launch.lengths import CacheSizes
from tunefa.compile.launch.resizable import Sizes
from tunefa.runtime.decode_call import CacheKey, CacheOptions
from tunefa.runtime.family_call import MAX_STRIDE, contiguous, of_tensors


class CacheFamilyCall(NamedTuple):
    """A call over a cache of a family, without its tensors."""

    family: Hashable
    """Equal for calls of one family."""
    sizes: CacheSizes


def family_call(key: CacheKey, options: CacheOptions) -> CacheFamilyCall | None:
    """Returns what plans of a family need of a call with this `decode_call.key`; None for calls
    that are planned one by one: those with unaligned or expanded tensors, with a common prefix,
    without batch invariance, with a window that hides nothing, or with wrong arguments. What all
    calls of a family have in common is checked with its first one.
    """
    _, _, q_type, q_at, _, _, k_type, k_at, _, _, v_type, v_at, aligned, shares_rows, *rest = key
    _, lengths, steps, lengths_type, lengths_at, table, out, others = rest
    tensors = of_tensors(key, options.layout) if all(aligned) else None
    if tensors is None or options.shared_prefix or not options.batch_invariant:
        return None
    q, k, v = tensors
    (batch, heads, rows, head_dim, *_), (pages, heads_kv, keys, head_dim_k, *_) = q, k
    shape, table_row, of_table = (batch, heads, rows, v[3]), 0, None
    if table is not None:
        keys, table_row, of_table = _paged(table, keys, batch)
    elif pages != batch:
        return None
    of_out = contiguous(shape, options.layout) if out is None else _out(out, shape, options.layout)
    factor_steps, of_others = _NO_OTHERS if others is None else _others(others, batch)
    if not keys or lengths != (batch,) or steps != (1,) or of_out is None or factor_steps is None:
        return None
    if options.window_left is not None and options.window_left >= keys - 1:
        return None
    family = (
        (q_type, k_type, v_type, q_at, k_at, v_at, lengths_type, lengths_at, shares_rows, options),
        (heads, rows, head_dim, heads_kv, head_dim_k, v[3]),
        (of_table, None if out is None else out[2:], of_others),
    )
    return CacheFamilyCall(
        family, CacheSizes(batch, keys, table_row, (q, k, v, of_out), factor_steps)
    )


_NO_OTHERS: tuple[tuple[int, ...] | None, Hashable] = (), None


def _paged(table: Any, page_size: int, batch: int) -> tuple[int, int, Hashable]:
    """Returns (keys, elements of a row, what the family has of it) of a block table; no keys where
    it does not fit."""
    shape, steps, *kind = table
    if len(shape) != 2 or shape[0] != batch or steps[1] != 1 or not 0 < steps[0] < MAX_STRIDE:
        return 0, 0, None
    return page_size * shape[1], steps[0], (page_size, *kind)


def _out(out: Any, wanted: tuple[int, ...], layout: str) -> Sizes | None:
    """Returns the sizes of a given output; None where kernels cannot write it."""
    shape, steps, *_ = out
    if len(shape) != 4:
        return None
    if layout == "bshd":
        (batch, rows, heads, columns), (of_batch, of_row, of_head, step) = shape, steps
    else:
        (batch, heads, rows, columns), (of_batch, of_head, of_row, step) = shape, steps
    is_read = of_batch and of_head and of_row and (of_batch | of_head | of_row) % 16 == 0
    if (batch, heads, rows, columns) != wanted or step != 1 or not is_read:
        return None
    if of_head >= MAX_STRIDE or of_row >= MAX_STRIDE:
        return None
    return batch, heads, rows, columns, of_batch, of_head, of_row, step


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
