"""Tensor maps: what a kernel's copies by TMA know of a tensor (CUtensorMap in the CUDA driver)."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

from tunefa.compile.launch.driver import Driver
from tunefa.spec.rounding import round_up

MAP_BYTES = 128
"""sizeof(CUtensorMap)."""
MAP_ALIGNMENT = 64
_NO_INTERLEAVE, _L2_PROMOTION_128B = 0, 2
_FILL_ZERO, _FILL_NAN = 0, 1


@dataclass(unsafe_hash=True)  # not frozen: that takes three times as long to make
class TensorMap:
    """The contents of a CUtensorMap (a TMA descriptor), except for the tensor's address.

    There are at most five axes, in PyTorch's order; the last one is contiguous. The driver gets the
    same arguments as from Triton's launcher (backends/nvidia/driver.c).
    """

    dtype: int
    """A CUtensorMapDataType."""
    element_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    box: tuple[int, ...]
    """Elements that one copy loads, for each axis."""
    swizzle: int
    """A CUtensorMapSwizzle."""
    fill_nan: bool
    """Whether elements outside of the tensor are read as NaN, not as 0."""
    by_panels: bool = False
    """Whether a copy brings whole rows, cut into panels as wide as `box`, which divides them: one
    panel of all rows after the other. The driver's map then has an axis more, of the panels."""

    @property
    def axes(self) -> int:
        """The axes of the driver's map."""
        return len(self.shape) + self.by_panels

    def at(self, address: int, driver: Driver, device: int) -> ctypes.Array[ctypes.c_ubyte]:
        """Returns memory with the map of a tensor at `address`, at `aligned(memory)`."""
        memory = _MAP_MEMORY()
        arguments = self.arguments(c_void_p(aligned(memory)), c_void_p(address))
        driver.call_on(device, "cuTensorMapEncodeTiled", *arguments)
        return memory

    def arguments(self, place: Any, tensor: Any) -> tuple[Any, ...]:
        """Returns those of cuTensorMapEncodeTiled: the fifth and the sixth hold lengths and steps
        in bytes, the contiguous axis first. Python's ints are passed as C's int."""
        return place, self.dtype, self.axes, tensor, *self._after()

    def _after(self) -> tuple[Any, ...]:
        """The arguments after the tensor's address."""
        longs, words = _longs_and_words(self.axes)
        sizes, box = self.lengths(self.shape, self.strides), [*reversed(self.box)]
        if self.by_panels:
            box.insert(2, sizes[2])
        return (
            longs.pack(*sizes[: self.axes]),
            longs.pack(*sizes[self.axes :]),
            words.pack(*box),
            words.pack(*[1] * self.axes),
            *(_NO_INTERLEAVE, self.swizzle, _L2_PROMOTION_128B),
            _FILL_NAN if self.fill_nan else _FILL_ZERO,
        )

    def lengths(self, shape: Sequence[int], strides: Sequence[int]) -> list[int]:
        """Returns the driver's lengths of a tensor's axes, the contiguous one first, then the steps
        of the others in bytes, and 0."""
        each = self.element_bytes
        found, steps = [*reversed(shape)], [each * step for step in reversed(strides[:-1])]
        if self.by_panels:
            width = self.box[-1]
            found[0], panels = width, found[0] // width
            found.insert(2, panels)
            steps.insert(1, each * width)
        return [*found, *steps, 0]


@functools.cache
def _longs_and_words(count: int) -> tuple[struct.Struct, struct.Struct]:
    return struct.Struct(f"{count}Q"), struct.Struct(f"{count}I")


_MAP_MEMORY = ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT - 1)


def aligned(memory: Any) -> int:
    """Returns the first address in a ctypes object that is aligned for a CUtensorMap."""
    return round_up(ctypes.addressof(memory), MAP_ALIGNMENT)
