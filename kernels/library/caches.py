"""A cache with the lengths of its sequences, as attention libraries read it."""

from __future__ import annotations

from tunefa.kernels.decode.tensors import most_keys


def seen_keys(tensors, workload):
    """Returns the lengths of sequences on the device, at most those that the cache has places for:
    libraries read as many keys as they are told."""
    return tensors[5].clamp(0, most_keys(tensors, workload))


def without_keys(lse):
    """Writes -inf where a library has inf in its logsumexp, in rows that see no key; returns it."""
    inf = float("inf")
    return lse.nan_to_num_(nan=float("nan"), posinf=-inf, neginf=-inf)


def rows_fit(tensors):
    """Whether a library can read the cache as it lies: 16 bytes at a time, and sequences a whole
    number of rows apart, as many for k as for v."""
    k, v = tensors[1:3]
    units = 16 // k.element_size()
    for x in (k, v):
        steps = [step for size, step in zip(x.shape[:3], x.stride()[:3], strict=True) if size > 1]
        fits = x.stride(-1) == 1 and all(step > 0 and step % units == 0 for step in steps)
        if not fits or x.data_ptr() % 16:
            return False
    if k.shape[0] == 1:
        return True
    return all(x.stride(0) % x.stride(2) == 0 for x in (k, v)) and rows_apart(k) == rows_apart(v)


def rows_apart(x):
    """Returns how many rows lie from one sequence to the next; of one sequence, its keys."""
    return x.stride(0) // x.stride(2) if x.shape[0] > 1 else x.shape[2]
