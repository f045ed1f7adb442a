"""Launches for lengths that are seen for the first time: what follows the lengths is written into
memory that was prepared once, and the kernel starts from there.

What is written for a length, its tensor maps too, is packed before the call needs it, where the
length was expected. The maps are then those of tensors at the addresses of the last call: a start
copies them, and replaces the addresses that differ, which takes a fifth of the time of a new map.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from torch import Tensor

from tunefa.compile.launch import blocks
from tunefa.compile.launch import driver as drivers
from tunefa.compile.launch.arguments import Descriptor, Length, Parameter, Value
from tunefa.compile.launch.blocks import STREAM_AT
from tunefa.compile.launch.driver import SUCCESS
from tunefa.compile.launch.prepared import PreparedLaunch, overlap_attributes
from tunefa.compile.launch.tensor_map import MAP_ALIGNMENT, MAP_BYTES, aligned

Sizes = tuple[int, ...]
"""The shape of a tensor, with heads first if it has heads, then its strides, in elements."""
AXES = 4
_ENCODE, _REPLACE = "cuTensorMapEncodeTiled", "cuTensorMapReplaceAddress"


class Resizing(NamedTuple):
    """The values that a launch gets for the lengths of a call."""

    ctas: int
    numbers: tuple[float, ...]
    """See `tunefa.compile.launch.lengths.Resized.numbers`."""
    sizes: tuple[Sizes, ...]
    """The sizes of the tensors up to the last that has a descriptor."""


Written = tuple[int, bytes, bytes, tuple[int, ...]]
"""The CTAs of a call, its numbers, its tensor maps, as a launch writes them, and the addresses of
all tensors in these maps. A plain tuple is made in half of the time of one with names."""


class ResizableLaunch:
    """Starts one kernel on dense tensors of any lengths. Threads and streams may share it.

    Its caller keeps the tables that the numbers point to, and prepares a launch anew while a CUDA
    graph is captured.
    """

    def __init__(self, launch: PreparedLaunch, tensors: int, numbers: int, form: str) -> None:
        """Copies a launch of the kernel. `tensors` and `numbers` are how many a call has, `form` is
        the format of the numbers as `struct` writes it; without one, each has eight bytes."""
        self.driver, self.entry, self._tensors = launch.driver, launch.entry, tensors
        self._parameters, entry = launch.parameters, launch.entry
        sizes = *entry.grid, entry.threads, 1, 1, entry.smem_bytes
        self._block = blocks.new(
            sizes, tensors, self._parameters, blocks.places(tensors, self._parameters)
        )
        self._before = bytes(self._block)
        base = ctypes.addressof(self._block)
        self._parameters_at = blocks.ADDRESSES_AT + 8 * tensors
        self._values_at = self._parameters_at + 8 * len(self._parameters)
        pointers = base, entry.function, base + self._parameters_at, None
        self._arguments = tuple(map(blocks.as_argument, pointers))
        self._pack_head = blocks.head(tensors).pack_into
        self._device, self._attributes = entry.device, overlap_attributes(entry)
        self._lock = threading.Lock()
        self._maps, self._map_bytes = self._new_maps()
        self._addresses = (aligned(self._block),) * tensors
        """The addresses of the tensors of the last call; of some memory before the first one."""
        self._described = self._shapes_in_parameters()
        """The tensors whose shapes and strides are parameters behind their descriptors."""
        ranks = [len(each.map.shape) for each in self._parameters if isinstance(each, Descriptor)]
        words = 2 * sum(ranks) * bool(self._described) + numbers
        self._packing = struct.Struct(form or f"{words}q")
        memory = memoryview(self._block).cast("B")
        self._grid = memory[:4].cast("I")
        self._numbers = memory[self._values_at :][: self._packing.size]
        self._start = self.driver.launch

    @classmethod
    def of(
        cls, launch: Any, tensors: int, resizing: Resizing, form: str = ""
    ) -> ResizableLaunch | None:
        """Returns one that does what a prepared launch does; None where it would do anything else
        for the lengths that the launch was prepared for. `form` is that of the numbers."""
        if not isinstance(launch, PreparedLaunch) or not _describes(launch, resizing):
            return None
        if not form and any(each.size > 8 for each in launch.parameters if type(each) is Value):
            return None
        made = cls(launch, tensors, len(resizing.numbers), form)
        if not made._writes_lengths():
            return None
        same = made.bound(resizing)
        return made if same is not None and same.plain_key == launch.plain_key else None

    @property
    def tensors(self) -> frozenset[int]:
        """The numbers of the tensors that the kernel gets."""
        return frozenset(each.tensor for each in self._parameters if not isinstance(each, Value))

    def written(self, ctas: int, numbers: Sequence[float], sizes: Sequence[Sizes]) -> Written:
        """Returns what `start` writes for the lengths of a call, which are those of `Resizing`."""
        words = self._words(numbers, sizes) if self._described else numbers
        with self._lock:
            addresses = self._addresses
            for each in self._maps:
                each.describe(sizes[each.tensor], addresses[each.tensor])
            return ctas, self._packing.pack(*words), bytes(self._map_bytes), addresses

    def start(self, stream: int, written: Written, addresses: tuple[int, ...]) -> None:
        """Starts the kernel on a stream, the current one of its device, the current device."""
        ctas, numbers, maps, described = written
        with self._lock:  # the driver copies parameters and maps before it returns
            self._grid[0] = ctas
            self._pack_head(self._block, STREAM_AT, stream, *self._attributes, *addresses)
            self._numbers[:] = numbers
            self._map_bytes[:] = maps
            if addresses != described:
                for each in self._maps:
                    at = each.tensor
                    if addresses[at] != described[at]:
                        each.move(addresses[at])
            if self._start(*self._arguments) != SUCCESS:
                self.driver.call_on(self._device, "cuLaunchKernelEx", *self._arguments)
            self._addresses = addresses

    def bound(self, resizing: Resizing, tables: Sequence[Tensor] = ()) -> PreparedLaunch | None:
        """Returns a launch that is prepared for these lengths, which starts sooner; None where
        there are more numbers than the kernel has. `tables` live as long as the launch."""
        places = blocks.places(self._tensors, self._parameters)
        values = bytearray(self._before)
        if self._values_at + self._packing.size > len(values):
            return None
        words = self._words(resizing.numbers, resizing.sizes)
        self._packing.pack_into(values, self._values_at, *words)
        found: list[Parameter] = []
        for place, each in zip(places, self._parameters, strict=False):
            if isinstance(each, Descriptor):
                own = resizing.sizes[each.tensor]
                rank = len(each.map.shape)
                of_lengths = replace(each.map, shape=own[:rank], strides=own[rank:])
                found.append(Descriptor(each.tensor, of_lengths))
            elif isinstance(each, Value):
                found.append(Value(bytes(values[place : place + each.size])))
            else:
                found.append(each)
        entry = replace(self.entry, grid=(resizing.ctas, 1, 1))
        return PreparedLaunch(self.driver, entry, self._tensors, found, tables)

    def _words(self, numbers: Sequence[float], sizes: Sequence[Sizes]) -> list[float]:
        """Returns the numbers of a call, behind those that describe tensors."""
        return [*chain.from_iterable([sizes[tensor] for tensor in self._described]), *numbers]

    def _writes_lengths(self) -> bool:
        """Whether the numbers of a call are written to each parameter that is a length."""
        end = self._values_at + self._packing.size
        at = blocks.places(self._tensors, self._parameters)
        pairs = zip(at, self._parameters, strict=False)
        return all(place < end for place, each in pairs if isinstance(each, Length))

    def _new_maps(self) -> tuple[list[_Map], memoryview]:
        """One map for each different descriptor, with a pointer to it at each of its places in the
        block, and the memory of all maps."""
        different = dict.fromkeys(each for each in self._parameters if isinstance(each, Descriptor))
        memory = (ctypes.c_ubyte * (len(different) * MAP_BYTES + MAP_ALIGNMENT - 1))()
        first = aligned(memory)
        found = {
            each: _Map(self.driver, self.entry.device, each, first + number * MAP_BYTES)
            for number, each in enumerate(different)
        }
        words = memoryview(self._block).cast("B").cast("Q")
        for number, each in enumerate(self._parameters):
            if isinstance(each, Descriptor):
                words[self._parameters_at // 8 + number] = found[each].place
        begin = first - ctypes.addressof(memory)
        end = begin + len(found) * MAP_BYTES
        return [*found.values()], memoryview(memory).cast("B")[begin:end]

    def _shapes_in_parameters(self) -> tuple[int, ...]:
        """The tensors of the descriptors, if shape and strides follow each as parameters."""
        found: list[int] = []
        for number, each in enumerate(self._parameters):
            if isinstance(each, Descriptor):
                values = *each.map.shape, *each.map.strides
                behind = self._parameters[number + 1 : number + 1 + len(values)]
                if [_word(value) for value in behind] != list(values):
                    return ()
                found.append(each.tensor)
        return tuple(found)


class _Map:
    """A tensor map of a launch, in the launch's memory. The launch's lock protects it."""

    def __init__(
        self, driver: drivers.Driver, device: int, parameter: Descriptor, place: int
    ) -> None:
        self.tensor, self.place = parameter.tensor, place
        self._driver, self._device = driver, device
        self._bytes = parameter.map.element_bytes
        self._map, rank = parameter.map, parameter.map.axes
        self._has_heads = len(parameter.map.shape) == AXES
        self._width = parameter.map.box[-1] * parameter.map.by_panels
        """Columns of a panel."""
        self._lengths = (ctypes.c_uint64 * (2 * rank))()
        self._pack_into = struct.Struct(f"{2 * rank}Q").pack_into
        self._tensor_at = ctypes.c_void_p()
        lengths, of_map = ctypes.addressof(self._lengths), blocks.as_argument(place)
        arguments = parameter.map.arguments(of_map, self._tensor_at)
        self._arguments = (
            *arguments[:4],
            *(blocks.as_argument(lengths), blocks.as_argument(lengths + 8 * rank)),
            *arguments[6:],
        )
        self._moving = of_map, self._tensor_at
        self._encode: Any = driver.encode
        self._replace: Any = driver.replace

    def describe(self, sizes: Sizes, address: int) -> None:
        """Makes it the map of a tensor with these sizes at an address."""
        each = self._bytes
        lengths: Sequence[int]
        if self._has_heads:  # most have, and this takes a third of the time
            batch, heads, rows, columns, of_batch, of_head, of_row, _ = sizes
            of_row, of_head, of_batch = each * of_row, each * of_head, each * of_batch
            width = self._width
            if width:
                first = width, rows, columns // width, heads, batch, of_row, each * width
                lengths = *first, of_head, of_batch, 0
            else:
                lengths = columns, rows, heads, batch, of_row, of_head, of_batch, 0
        else:
            rank = len(self._map.shape)
            lengths = self._map.lengths(sizes[:rank], sizes[rank:])
        self._pack_into(self._lengths, 0, *lengths)
        self._tensor_at.value = address
        if self._encode(*self._arguments) != SUCCESS:
            self._driver.call_on(self._device, _ENCODE, *self._arguments)

    def move(self, address: int) -> None:
        """Makes it the map of a tensor with the same sizes at another address."""
        self._tensor_at.value = address
        if self._replace(*self._moving) != SUCCESS:
            self._driver.call_on(self._device, _REPLACE, *self._moving)


def _describes(launch: PreparedLaunch, resizing: Resizing) -> bool:
    """Whether each map of a launch is one of a tensor with the sizes of the call."""
    return all(
        (*each.map.shape, *each.map.strides) == resizing.sizes[each.tensor]
        for each in launch.parameters
        if isinstance(each, Descriptor)
    )


def _word(parameter: Parameter) -> int | None:
    """Returns the number that a value holds; None for other parameters."""
    if not isinstance(parameter, Value):
        return None
    return int.from_bytes(parameter.data, "little", signed=True)
