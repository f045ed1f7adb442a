"""Pointers to global memory, for Gluon kernels that run on the CPU (gluon_on_cpu.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Pointer:
    """A pointer to the first element of a tensor, or one to each of several elements."""

    def __init__(self, memory: Tensor, places: Any) -> None:
        self.memory, self.places = memory, places

    def __add__(self, steps: Any) -> Pointer:
        return Pointer(self.memory, self.places + steps)

    def load(self, mask: Tensor | None, other: float) -> Any:
        if mask is None:  # a pointer to one integer
            return int(self.memory[self.places])
        made = torch.full(mask.shape, other, dtype=self.memory.dtype)
        made[mask] = self.memory[self.places[mask].as_subclass(Tensor)]
        return made

    def store(self, value: Tensor, mask: Tensor) -> None:
        self.memory[self.places[mask].as_subclass(Tensor)] = value[mask].as_subclass(Tensor)


def pointer(tensor: Tensor) -> Pointer:
    """A pointer to the first element of a tensor, for accesses by the tensor's strides."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return Pointer(torch.as_strided(tensor, (size,), (1,), 0), tensor.storage_offset())
