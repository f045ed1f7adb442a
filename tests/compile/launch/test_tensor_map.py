"""tunefa/compile/launch/tensor_map.py: what the driver is told of a tensor."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import replace

import pytest

from tunefa.compile.launch import tensor_map
from tunefa.compile.launch.tensor_map import TensorMap

PAGES = TensorMap(9, 2, (30, 8, 16, 128), (32768, 128, 1024, 1), (1, 1, 16, 64), 3, fill_nan=False)
"""A cache of 30 pages of 16 keys, for 8 heads of 128 columns in 16 bits."""


def told(map: TensorMap) -> list[tuple[int, ...]]:
    """Sizes, steps and the box of a map."""
    axes, place = map.arguments(0, 0)[2], map.arguments(0, 0)[4:7]
    longs = [struct.unpack(f"{axes}Q", each) for each in place[:2]]
    return [*longs, struct.unpack(f"{axes}I", place[2])]


def test_a_map_lies_where_the_driver_takes_it() -> None:
    memory = (ctypes.c_ubyte * 256)()
    found = tensor_map.aligned(memory)
    assert found % 64 == 0 and 0 <= found - ctypes.addressof(memory) < 64


def test_the_contiguous_axis_comes_first() -> None:
    assert told(PAGES) == [(128, 16, 8, 30), (2048, 256, 65536, 0), (64, 16, 1, 1)]


def test_panels_are_an_axis_behind_the_rows() -> None:
    sizes, steps, box = told(replace(PAGES, by_panels=True))
    assert sizes == (64, 16, 2, 8, 30) and box == (64, 16, 2, 1, 1)
    assert steps == (2048, 128, 256, 65536, 0)


@pytest.mark.parametrize("by_panels", [False, True])
def test_lengths_are_those_of_the_arguments(by_panels: bool) -> None:
    map = replace(PAGES, by_panels=by_panels)
    sizes, steps, _ = told(map)
    assert map.lengths(map.shape, map.strides) == [*sizes, *steps]
    assert map.axes == 4 + by_panels
