"""Several launches, one after the other, with memory that they share while they run.

Each stream has a workspace that its calls share: they run one after the other, so that none of them
needs memory of its own. A call that a CUDA graph captures, and one that needs much, allocates.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tunefa.compile.launch.prepared import PreparedLaunch, apart
from tunefa.spec.rounding import next_pow2, round_up

Scratch = Sequence[tuple[tuple[int, ...], torch.dtype]]
"""Shapes and dtypes of the memory that a call needs while it runs."""
MOST_BYTES = 2**25
"""Bytes of the largest workspace. A call that needs more takes so long on the device that the time
of an allocation on the host does not matter."""
LEAST_BYTES = 2**20
MOST_STREAMS = 16
"""How many streams of the process keep a workspace: those that were used last."""
ALIGNMENT = 256
"""Bytes; each part of the memory begins at a multiple, as in PyTorch's allocations."""


class Layout:
    """The places of the parts of a call's memory."""

    __slots__ = ("bytes", "offsets")

    def __init__(self, scratch: Scratch) -> None:
        self.bytes, offsets = 0, []
        for shape, dtype in scratch:
            offsets.append(self.bytes)
            self.bytes += round_up(math.prod(shape) * dtype.itemsize, ALIGNMENT)
        self.offsets = tuple(offsets)

    def at(self, address: int) -> list[int]:
        """Returns the addresses of all parts of memory at an address."""
        return [address + offset for offset in self.offsets]


@dataclass(frozen=True)
class Steps:
    """Several launches, one after the other, on the call's tensors and shared scratch memory."""

    launches: Sequence[PreparedLaunch]
    scratch: Scratch

    @property
    def device_bytes(self) -> int:
        """Device memory that they hold, in bytes, without the scratch memory of each call."""
        return sum(launch.device_bytes for launch in self.launches)

    @property
    def key(self) -> Hashable:
        """See `PreparedLaunch.key`; None if a launch has none."""
        keys = tuple(getattr(launch, "key", None) for launch in self.launches)
        shapes = tuple((tuple(shape), str(dtype)) for shape, dtype in self.scratch)
        return None if None in keys else (keys, shapes)

    @functools.cached_property
    def _layout(self) -> Layout:
        return Layout(self.scratch)

    def __call__(self, *tensors: Tensor) -> None:
        """Starts all launches; see `PreparedLaunch`."""
        first, layout = self.launches[0], self._layout
        addresses = [*map(Tensor.data_ptr, tensors)]
        stream = first.driver.current_stream(first.entry.device)

        def start(memory: int) -> None:
            addresses.extend([memory + offset for offset in layout.offsets])
            for launch in self.launches:
                launch.start(stream, addresses, tensors)

        if first.driver.is_capturing():
            for launch in self.launches:
                launch.live_forever()
            memory = _new(layout.bytes, tensors[0])  # the graph keeps it for its replays
            start(memory.data_ptr())
        else:
            within(layout.bytes, stream, tensors[0], start)


def new_scratch(scratch: Scratch, like: Tensor) -> tuple[Tensor, ...]:
    """Returns uninitialised tensors on the device of `like`."""
    return tuple(like.new_empty(shape, dtype=dtype) for shape, dtype in scratch)


def within(size: int, stream: int, like: Tensor, start: Callable[[int], None]) -> None:
    """Calls `start` with the address of memory of at least so many bytes, on the device of `like`.

    Launches that it starts on the stream may use the memory. `stream` is the current one, and
    nothing is captured there.
    """
    if size > MOST_BYTES:
        memory = _new(size, like)  # until all are started: other threads use the stream, too
        start(memory.data_ptr())
        return
    space = _workspace(like.get_device(), stream)
    with space.lock:
        if size > space.size:
            space.grow(size, like)
        start(space.address)


class Workspace:
    """The memory that calls on one stream share.

    Its lock is held from the first launch of a call to the last: a thread must not start a kernel
    of its own between those of another thread. The memory belongs to the stream, so PyTorch gives
    none of it to another use before the kernels that were started have ended.
    """

    __slots__ = ("_memory", "_stream", "address", "lock", "size")

    def __init__(self, stream: int) -> None:
        self._stream, self._memory = stream, torch.empty(0)
        self.lock = threading.Lock()
        self.address = 0
        self.size = 0
        """In bytes."""

    def grow(self, size: int, like: Tensor) -> None:
        """Allocates at least so many bytes on the device of `like`. The caller holds the lock.

        PyTorch may be collecting this thread's allocations for CUDA graphs (its graph trees do), so
        another thread allocates.
        """
        size = max(LEAST_BYTES, next_pow2(size))
        if like.is_cpu:  # a test's
            self._memory = _new(size, like)
        else:
            self._memory = apart(like.get_device(), lambda: _new(size, like), self._stream)
        self.address, self.size = self._memory.data_ptr(), size


@functools.lru_cache(maxsize=MOST_STREAMS)  # if two threads make one each, both are right
def _workspace(device: int, stream: int) -> Workspace:
    return Workspace(stream)


def _new(size: int, like: Tensor) -> Tensor:
    return like.new_empty(size, dtype=torch.uint8)
