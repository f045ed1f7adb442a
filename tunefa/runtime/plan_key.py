"""The key of a call: what decides its plan. Each call computes it, in a few microseconds."""

from __future__ import annotations

from collections.abc import Hashable

from tunefa.runtime.call import Options, Tensors, power_of_2

DENSE_KEY = 14
"""The length of the `plan_key` of a dense call without descales."""
_ALL_ALIGNED = True, True, True


def plan_key(tensors: Tensors, options: Options) -> Hashable:
    """The key of a call: calls with equal keys are served by one plan.

    Dense calls with equal keys have equal shapes, strides and dtypes. Packed calls may differ in
    lengths that round up to the same powers of two. A call that `Call.of` refuses never has the key
    of one that it accepts.
    """
    q, k, v, cu_seqlens, descales = tensors
    of_q, of_k, of_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    aligned = _ALL_ALIGNED
    if (of_q | of_k | of_v) % 16:
        # One by one: what is not aligned may be copied before a kernel reads it.
        aligned = of_q % 16 == 0, of_k % 16 == 0, of_v % 16 == 0
    if cu_seqlens is None:
        key = (
            q.shape, q.stride(), q.dtype, q.get_device(),
            k.shape, k.stride(), k.dtype, k.get_device(),
            v.shape, v.stride(), v.dtype, v.get_device(),
            aligned, options,
        )  # fmt: skip
        if not descales:
            return key
        return *key, *[None if x is None else (x.shape, x.dtype, x.device) for x in descales]
    return _packed_key(tensors, options, aligned)


def _packed_key(tensors: Tensors, options: Options, aligned: Hashable) -> Hashable:
    """The key of a packed call. Most calls have one tensor for both starts."""
    q, k, v, cu_seqlens, _ = tensors
    assert cu_seqlens is not None
    starts_q, starts_k = cu_seqlens
    try:
        rows, heads, dim = q.shape
        keys, heads_k, dim_k = k.shape
        keys_v, heads_v, dim_v = v.shape
        (bounds,) = starts_q.shape
    except ValueError:  # no call with such tensors is accepted
        return "wrong axes", *(len(each.shape) for each in (q, k, v, *cu_seqlens))
    # The next powers of two, without two calls of power_of_2.
    most_rows = 1 << (rows - 1).bit_length() if rows else 0
    most_batches = 1 << (bounds - 2).bit_length() if bounds > 1 else bounds - 1
    of_starts = starts_q.stride(), starts_q.dtype, starts_q.get_device()
    of_starts_k: Hashable = True
    if starts_k is not starts_q:
        is_as_long = starts_k.shape == (bounds,)
        others = starts_k.stride(), starts_k.dtype, starts_k.get_device()
        of_starts_k = (is_as_long and others == of_starts) or (is_as_long, *others)
    causal, left, right, layout, softcap, most_q, most_k, deterministic, accumulate = options
    return (
        heads, dim, q.stride(), q.dtype, q.get_device(),
        heads_k, dim_k, k.stride(), k.dtype, k.get_device(),
        heads_v, dim_v, v.stride(), v.dtype, v.get_device(),
        of_starts, of_starts_k,
        aligned, keys == 0, keys == keys_v, most_rows, most_batches,
        power_of_2(most_q), power_of_2(most_k), deterministic, accumulate,
        causal, left, right, layout, softcap,
    )  # fmt: skip
