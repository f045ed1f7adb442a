"""Several launches, one after the other, with memory that they share while they run.

Each stream has a workspace that its calls share: they run one after the other, so that none of them
needs memory of its own. A call that a CUDA graph captures, and one that needs much, allocates.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Hashable, Sequence
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
"""The most streams of the process that keep a workspace: those that were used last."""
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
        first, like = self.launches[0], tensors[0]
        addresses = (*map(Tensor.data_ptr, tensors),)
        stream = first.driver.current_stream(first.entry.device)
        if first.driver.is_capturing():
            for launch in self.launches:
                launch.live_forever()
            memory = _new(self._layout.bytes, like)  # the graph keeps it for its replays
            self._start(stream, addresses, memory.data_ptr(), tensors)
            return
        size = self._layout.bytes
        space = workspace(size, stream, like)
        with space.lock:
            self._start(stream, addresses, space.at_least(size, like), tensors)

    def _start(
        self, stream: int, addresses: tuple[int, ...], memory: int, tensors: Sequence[Tensor]
    ) -> None:
        addresses = *addresses, *self._layout.at(memory)
        for launch in self.launches:
            launch.start(stream, addresses, tensors)


def new_scratch(scratch: Scratch, like: Tensor) -> tuple[Tensor, ...]:
    """Returns uninitialised tensors on the device of `like`."""
    return tuple(like.new_empty(shape, dtype=dtype) for shape, dtype in scratch)


def workspace(size: int, stream: int, like: Tensor) -> Workspace:
    """Returns memory for a call that needs so many bytes on the device of `like`.

    The call holds its lock while it starts launches, and gets the address from `at_least`.
    `stream` is the current one, and nothing is captured there.
    """
    if size > MOST_BYTES:  # of this call alone: other threads use the stream, too
        return Workspace(stream)
    return _workspace(like.get_device(), stream)


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

    def at_least(self, size: int, like: Tensor) -> int:
        """Returns the address of so many bytes on the device of `like`. The caller holds the lock
        until all kernels that use them are started."""
        if size > self.size:
            self._grow(size, like)
        return self.address

    def _grow(self, size: int, like: Tensor) -> None:
        """Allocates at least so many bytes.

        PyTorch may be collecting this thread's allocations for CUDA graphs (its graph trees do), so
        another thread allocates memory that later calls use.
        """
        if size > MOST_BYTES:
            self._memory = _new(size, like)
        else:
            size = max(LEAST_BYTES, next_pow2(size))
            if like.is_cpu:  # a test's
                self._memory = _new(size, like)
            else:
                device = like.get_device()
                self._memory = apart(device, lambda: _new(size, like), self._stream)
        self.address, self.size = self._memory.data_ptr(), size


@functools.lru_cache(maxsize=MOST_STREAMS)  # if two threads make one each, both are right
def _workspace(device: int, stream: int) -> Workspace:
    return Workspace(stream)


def _new(size: int, like: Tensor) -> Tensor:
    return like.new_empty(size, dtype=torch.uint8)
