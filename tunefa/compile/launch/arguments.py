"""The parameters of a kernel, and which of them change from call to call.

They are never changed, but a frozen dataclass takes three times as long to make, and each new
length makes a dozen.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tunefa.compile.launch.tensor_map import MAP_BYTES, TensorMap


@dataclass(unsafe_hash=True, slots=True)
class Pointer:
    """A parameter that is the address of one of the call's tensors."""

    tensor: int
    size = 8


@dataclass(unsafe_hash=True, slots=True)
class Descriptor:
    """A parameter that is a CUtensorMap of one of the call's tensors."""

    tensor: int
    map: TensorMap
    size = MAP_BYTES


@dataclass(unsafe_hash=True, slots=True)
class Value:
    """A parameter that never changes."""

    data: bytes

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self.data)


@dataclass(unsafe_hash=True, slots=True)
class Length:
    """A 32-bit parameter that is the length of an axis of one of the call's tensors."""

    tensor: int
    axis: int
    size = 4


Parameter = Pointer | Descriptor | Value | Length


def pointer(
    argument: Any, tensors: Sequence[Tensor], tables: list[Tensor]
) -> list[Parameter] | None:
    """Returns the parameter for a tensor: one of the call's `tensors`, or a table.

    A table is any other tensor; it is added to `tables`. Returns None for a view of one of
    `tensors`, because its address changes from call to call.
    """
    at = place(argument, tensors)
    if at is not None:
        return [Pointer(at)]
    if not isinstance(argument, Tensor) or _overlaps(argument, tensors):
        return None
    tables.append(argument)
    return [Value(struct.pack("Q", argument.data_ptr()))]


def length(argument: tuple[Any, int], tensors: Sequence[Tensor]) -> list[Parameter] | None:
    """Returns the parameter for (tensor, axis); None if it is not one of the call's tensors."""
    tensor, axis = argument
    at = place(tensor, tensors)
    return None if at is None else [Length(at, axis)]


def place(tensor: Any, tensors: Sequence[Tensor]) -> int | None:
    """Returns the index of `tensor` in the call's tensors; None if it is not one of them."""
    return next((at for at, each in enumerate(tensors) if each is tensor), None)


def _overlaps(tensor: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Returns whether `tensor` shares memory with one of the call's tensors."""
    storage = tensor.untyped_storage().data_ptr()
    return any(each.untyped_storage().data_ptr() == storage for each in tensors)
