"""Prepared launches: a call only writes new addresses and starts the kernel.

Preparing a launch (loading the binary, running the kernel's host side, checking its parameters)
takes about 1 ms; a call takes about 2 us.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from tunefa.compile.launch import blocks
from tunefa.compile.launch import driver as drivers
from tunefa.compile.launch.arguments import Descriptor, Length, Parameter, Value
from tunefa.compile.launch.blocks import STREAM_AT
from tunefa.compile.launch.driver import SUCCESS, Driver
from tunefa.compile.launch.tensor_map import TensorMap, aligned

MAX_MAPS = 64
"""The most tensor maps that an argument keeps, one for each address. A map takes 0.5 KB."""
MAX_TOTAL_MAPS = 2**15
"""The most maps of all arguments together, which are 16 MB. Beyond it, each argument keeps
FEWEST_MAPS: a process with thousands of plans would keep gigabytes otherwise."""
FEWEST_MAPS = 2
_LENGTH = struct.Struct("i")
_PROGRAMMATIC = struct.Struct("ixxxxi60x")
"""A CUlaunchAttribute (cuda.h): its number, and 64 bytes of a value."""
_STREAM_SERIALIZATION = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
Returned = TypeVar("Returned")


@dataclass(slots=True)  # not frozen: that takes three times as long to make
class Entry:
    """A loaded kernel, and the size of its grid and blocks."""

    device: int
    function: int
    """CUfunction."""
    grid: tuple[int, int, int]
    threads: int
    """Threads of one CTA."""
    smem_bytes: int
    binary: object = None
    """The owner of `function`, which must exist as long as it is used."""
    overlaps_kernel_before: bool = False
    """Whether it may start while the kernel launched before it still runs."""


class PreparedLaunch:
    """Starts one kernel, on tensors with the memory layout that it was prepared for.

    It uses only the tensors' addresses, and the lengths of axes for `Length` parameters. Threads
    and streams may share it. When a CUDA graph has captured it, it lives as long as the process.
    """

    def __init__(
        self,
        driver: Driver,
        entry: Entry,
        tensors: int,
        parameters: Sequence[Parameter],
        tables: Sequence[Tensor] = (),
    ) -> None:
        """Prepares a launch of a kernel with these `parameters`; calls have `tensors` tensors.

        `tables` are tensors that a `Value` points to. They live as long as the launch, and so does
        the kernel's binary.
        """
        self._driver, self._device = driver, entry.device
        self.tables = tables
        self.driver, self.entry, self.parameters = driver, entry, parameters
        self._lock = threading.Lock()
        self._streams: set[int] = set()
        self._immortal = False
        sizes = *entry.grid, entry.threads, 1, 1, entry.smem_bytes
        places = blocks.places(tensors, parameters)
        self._block = blocks.new(sizes, tensors, parameters, places)
        self._pack = blocks.head(tensors).pack_into
        self._attributes = overlap_attributes(entry)
        self._words = memoryview(self._block).cast("B").cast("Q")
        parameters_at = blocks.ADDRESSES_AT + 8 * tensors
        self._descriptors = [
            (parameters_at // 8 + number, each.tensor, _Maps(driver, entry.device, each.map))
            for number, each in enumerate(parameters)
            if isinstance(each, Descriptor)
        ]
        self._lengths = [
            (place, each.tensor, each.axis)
            for place, each in zip(places, parameters, strict=False)
            if isinstance(each, Length)
        ]
        base = ctypes.addressof(self._block)
        pointers = (base, entry.function, base + parameters_at, None)
        self._arguments = tuple(map(blocks.as_argument, pointers))
        # Attributes of this object are faster to look up.
        self._start, self._current_stream = driver.launch, driver.current_stream
        self._is_capturing = driver.is_capturing

    @property
    def device_bytes(self) -> int:
        """Device memory that it holds, in bytes."""
        return sum(table.untyped_storage().nbytes() for table in self.tables)

    @property
    def plain_key(self) -> tuple[Hashable, tuple[Parameter, ...]]:
        """The counterpart of `key` for a launch without tables; tables count by their addresses."""
        sizes = self.entry.grid, self.entry.threads, self.entry.smem_bytes
        return sizes, tuple(self.parameters)

    @property
    def key(self) -> Hashable:
        """Equal for launches of one kernel that do the same: their grids, threads, parameters and
        the contents of their tables are equal. It copies the tables from the device."""
        tables = {struct.pack("Q", each.data_ptr()): each for each in self.tables}
        parameters = (
            _content(tables[each.data]) if isinstance(each, Value) and each.data in tables else each
            for each in self.parameters
        )
        return self.plain_key[0], tuple(parameters)

    def __call__(self, *tensors: Tensor) -> None:
        """Starts the kernel on the current stream of its device, the current device."""
        if not self._immortal and self._is_capturing():
            self.live_forever()
        stream = self._current_stream(self._device)
        self.start(stream, (*map(Tensor.data_ptr, tensors),), tensors)

    def start(self, stream: int, addresses: Sequence[int], tensors: Sequence[Tensor]) -> None:
        """Starts the kernel on a stream, the current one of its device, the current device.

        `addresses` are those of the call's tensors, which may be followed by memory that is no
        tensor. While a graph is captured, the caller lets the launch live forever.
        """
        if self.tables and stream not in self._streams:
            self._meet(stream)
        with self._lock:  # the driver copies parameters and maps before it returns
            self._pack(self._block, STREAM_AT, stream, *self._attributes, *addresses)
            for place, tensor, axis in self._lengths:
                _LENGTH.pack_into(self._block, place, tensors[tensor].shape[axis])
            for word, tensor, maps in self._descriptors:
                address = addresses[tensor]
                self._words[word] = maps.known.get(address) or maps.add(address)
            if self._start(*self._arguments) != SUCCESS:
                self._driver.call_on(self._device, "cuLaunchKernelEx", *self._arguments)

    def live_forever(self) -> None:
        """Keeps the function and the tables for the rest of the process.

        The graph that is being captured uses them in each replay, and its end cannot be noticed.
        """
        if not self._immortal:
            self._immortal = True
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))

    def _meet(self, stream: int) -> None:
        """Tells PyTorch not to reuse the tables' memory before this stream has finished."""
        for table in self.tables:
            table.record_stream(torch.cuda.current_stream(self._device))
        self._streams.add(stream)


def _content(table: Tensor) -> Hashable:
    """Returns what a table holds."""
    held = table.detach().cpu().contiguous()
    return tuple(held.shape), str(held.dtype), held.view(torch.uint8).numpy().tobytes()


def overlap_attributes(entry: Entry) -> tuple[int, int]:
    """Returns the address and the number of a launch's attributes."""
    return (ctypes.addressof(_may_overlap()), 1) if entry.overlaps_kernel_before else (0, 0)


@functools.cache
def _may_overlap() -> Any:
    """The attribute of launches that may start while the kernel before still runs. The driver only
    reads it."""
    return ctypes.create_string_buffer(
        _PROGRAMMATIC.pack(_STREAM_SERIALIZATION, 1), _PROGRAMMATIC.size
    )


class _Maps:
    """The tensor maps of one argument by address: the newest ones, see `MAX_MAPS`.

    The lock of the launch protects it.
    """

    total = 0
    """The number of maps that all arguments of this process keep."""
    _counting = threading.RLock()  # the thread that holds it may collect garbage

    def __init__(self, driver: Driver, device: int, map: TensorMap) -> None:
        self._driver, self._device, self._map = driver, device, map
        self._memory: dict[int, Any] = {}
        self.known: dict[int, int] = {}
        """The address of the map, by the address of the tensor."""

    def add(self, address: int) -> int:
        """Makes a map for a tensor at `address`, and returns the map's address."""
        most = MAX_MAPS if _Maps.total < MAX_TOTAL_MAPS else FEWEST_MAPS
        while len(self.known) >= most:
            oldest = next(iter(self.known))
            del self.known[oldest], self._memory[oldest]
            self._count(-1)
        memory = self._map.at(address, self._driver, self._device)
        self._memory[address] = memory
        self.known[address] = aligned(memory)
        self._count(1)
        return self.known[address]

    def __del__(self) -> None:
        self._count(-len(self.known))

    @classmethod
    def _count(cls, more: int) -> None:
        with cls._counting:
            _Maps.total += more


def apart(device: int, work: Callable[[], Returned], stream: int | None = None) -> Returned:
    """Returns `work()`, run in another thread and on another stream than the caller's, or on
    `stream`, the handle of one on which nothing is captured.

    If the caller captures a CUDA graph, the copies and allocations of `work` must not become part
    of the graph, and must outlive it. Another stream alone is not enough: PyTorch's CUDA graph
    trees put all allocations of a thread into the graph's pool.
    """

    def there() -> Returned:
        driver = drivers.load()
        driver.bind(device)
        driver.relax_capture()
        with torch.cuda.device(device), torch.cuda.stream(_stream(device, stream)):
            return work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(there).result()


def _stream(device: int, handle: int | None) -> torch.cuda.Stream:
    """Returns PyTorch's object for a stream; for None, that of a stream of tunefa's own."""
    if handle is None:
        return _own_stream(device)
    cuda: Any = torch.cuda  # parts of it have no types
    if handle == 0:
        found: torch.cuda.Stream = cuda.default_stream(device)
    else:
        found = cuda.ExternalStream(handle, device=device)
    return found


@functools.cache
def _own_stream(device: int) -> torch.cuda.Stream:
    """Returns a stream of tunefa's own: a graph may be captured on any stream of PyTorch's pool."""
    cuda: Any = torch.cuda  # parts of it have no types
    stream: torch.cuda.Stream = cuda.ExternalStream(drivers.load().new_stream(), device=device)
    return stream
