"""What a kernel takes from a launch, and which of it changes from call to call."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tunefa.compile.launch.driver import MAP_BYTES, TensorMap


@dataclass(frozen=True)
class Pointer:
    """A parameter that is the address of one of the tensors."""

    tensor: int
    size = 8


@dataclass(frozen=True)
class Descriptor:
    """A parameter that is a CUtensorMap of one of the tensors."""

    tensor: int
    map: TensorMap
    size = MAP_BYTES


@dataclass(frozen=True)
class Value:
    """A parameter that never changes."""

    data: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)


@dataclass(frozen=True)
class Length:
    """A parameter of 32 bits that is how long an axis of one of the tensors is."""

    tensor: int
    axis: int
    size = 4


Parameter = Pointer | Descriptor | Value | Length


def pointer(
    argument: Any, tensors: Sequence[Tensor], tables: list[Tensor]
) -> list[Parameter] | None:
    """The address of a tensor: one of the call's `tensors`, or a table, which joins `tables`.

    None for a part of one of `tensors`, whose address changes with theirs.
    """
    at = place(argument, tensors)
    if at is not None:
        return [Pointer(at)]
    if not isinstance(argument, Tensor) or _overlaps(argument, tensors):
        return None
    tables.append(argument)
    return [Value(struct.pack("Q", argument.data_ptr()))]


def length(argument: tuple[Any, int], tensors: Sequence[Tensor]) -> list[Parameter] | None:
    """How long an axis of one of the call's tensors is, of (tensor, axis); None for others."""
    tensor, axis = argument
    at = place(tensor, tensors)
    return None if at is None else [Length(at, axis)]


def place(tensor: Any, tensors: Sequence[Tensor]) -> int | None:
    """Which of the call's tensors it is; None for another."""
    return next((at for at, each in enumerate(tensors) if each is tensor), None)


def _overlaps(tensor: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether it is part of one of them, whose address changes from call to call."""
    storage = tensor.untyped_storage().data_ptr()
    return any(each.untyped_storage().data_ptr() == storage for each in tensors)
