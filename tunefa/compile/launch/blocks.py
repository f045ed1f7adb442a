"""The memory of a launch: CUlaunchConfig, the addresses of tensors, a pointer to each parameter,
and the parameters that are values or lengths.

CUlaunchConfig (cuda.h) has grid and block sizes, and shared memory; at byte 32 the stream, at 40
the address of the attributes and at 48 their number. The tensors' addresses follow at 56, so that
one `pack_into` writes the stream and all addresses. Calls write these, the pointers to tensor maps,
and the lengths.

A new length needs a new block, so what launches of one kernel have in common is computed once.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import Any

from tunefa.compile.launch.arguments import Descriptor, Length, Parameter, Pointer, Value
from tunefa.spec.rounding import round_up

as_argument = ctypes.c_void_p.from_param
"""Makes an argument of an address. A c_void_p itself would be converted in each call."""
STREAM_AT, ADDRESSES_AT = 32, 56
_SIZES = struct.Struct("7I")


def new(
    sizes: Sequence[int], tensors: int, parameters: Sequence[Parameter], at: Sequence[int]
) -> Any:
    """Returns the block of a launch with so many tensors.

    `sizes` are those of the grid and of a CTA, and the bytes of its shared memory; `at` are the
    `places` of the parameters.
    """
    block = _memory(at[-1])()
    base = ctypes.addressof(block)
    _SIZES.pack_into(block, 0, *sizes)
    pointers = []
    for place, each in zip(at, parameters, strict=False):
        if type(each) is Value:
            block[place : place + len(each.data)] = each.data
        pointers.append(0 if type(each) is Descriptor else base + place)
    _words(len(pointers)).pack_into(block, ADDRESSES_AT + 8 * tensors, *pointers)
    return block


def places(tensors: int, parameters: Sequence[Parameter]) -> tuple[int, ...]:
    """Returns the offset of each parameter in the block, and the block's size. For a tensor map the
    offset has no meaning."""
    return _places(tensors, tuple([_kind(each) for each in parameters]))


@functools.cache
def head(tensors: int) -> struct.Struct:
    """The part that a call writes: stream, attributes with their number, and addresses."""
    return struct.Struct(f"{3 + tensors}Q")


def _kind(parameter: Parameter) -> int:
    """Returns the tensor of a pointer; for others minus one, and minus the bytes in the block."""
    kind = type(parameter)
    if kind is Pointer:
        return parameter.tensor  # type: ignore[union-attr]
    return -1 - (parameter.size if kind is Value or kind is Length else 0)


@functools.lru_cache(maxsize=256)  # launches of one kernel differ in values only
def _places(tensors: int, kinds: tuple[int, ...]) -> tuple[int, ...]:
    found, free = [], ADDRESSES_AT + 8 * (tensors + len(kinds))
    for kind in kinds:
        found.append(ADDRESSES_AT + 8 * kind if kind >= 0 else free)
        free += 0 if kind >= 0 else round_up(-1 - kind, 8)
    return *found, free


@functools.lru_cache(maxsize=256)
def _memory(size: int) -> Any:
    return ctypes.c_ubyte * size


@functools.cache
def _words(count: int) -> struct.Struct:
    return struct.Struct(f"{count}Q")
