"""tunefa/compile/launch/blocks.py: where a launch's parameters stand in its memory."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from tunefa.compile.launch import blocks
from tunefa.compile.launch.arguments import Descriptor, Length, Parameter, Pointer, Value


def test_values_stand_behind_the_pointers() -> None:
    shape: Any = None
    values = Value(b"abcd"), Value(bytes(12))
    parameters: list[Parameter]
    parameters = [Pointer(1), values[0], Descriptor(0, shape), Length(0, 2), values[1]]
    places = blocks.places(2, parameters)
    free = 56 + 8 * (2 + 5)
    assert places == (56 + 8, free, free + 8, free + 8, free + 16, free + 32)
    block = blocks.new((7, 1, 1, 384, 1, 1, 4096), 2, parameters, places)
    assert len(block) == places[-1]
    assert struct.unpack_from("7I", block) == (7, 1, 1, 384, 1, 1, 4096)
    base = ctypes.addressof(block)
    pointers = struct.unpack_from("5Q", block, 56 + 16)
    assert pointers == tuple(0 if i == 2 else base + places[i] for i in range(5))
    assert bytes(block[free : free + 4]) == b"abcd"


def test_a_head_holds_the_stream_the_attributes_and_the_addresses() -> None:
    assert blocks.head(5).size == 56 + 8 * 5 - blocks.STREAM_AT
