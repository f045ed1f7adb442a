"""Tensors as attention libraries read them."""

from __future__ import annotations


def readable(x):
    """Returns x, or a contiguous copy where a library may not read it: libraries load 16 bytes at a
    time, and not all of them take strides of 0."""
    steps = [step for size, step in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    units = 16 // x.element_size()
    fits = x.stride(-1) == 1 and all(step > 0 and step % units == 0 for step in steps)
    return x if fits and x.data_ptr() % 16 == 0 else x.clone(memory_format=_contiguous())


def sequences_first(x):
    """Returns a dense (batch, heads, seqlen, head_dim) tensor as (batch, seqlen, heads, head_dim),
    and a packed one, (rows, heads, head_dim), unchanged. It is its own inverse."""
    return x.transpose(1, 2) if x.dim() == 4 else x


def _contiguous():
    import torch

    return torch.contiguous_format
