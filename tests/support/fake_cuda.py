"""A stand-in for libcuda: C functions that remember what they were called with."""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Sequence
from ctypes import c_int, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from tunefa.compile.launch.driver import Driver

CONFIG = struct.Struct("7I4xQQI")
"""CUlaunchConfig (cuda.h): grid, block, shared memory, stream, attributes and their number."""
ATTRIBUTE = struct.Struct("i4xi60x")
"""CUlaunchAttribute (cuda.h): its number, and its value in a union of 64 bytes."""


@dataclass(frozen=True)
class Started:
    """One launch as the driver saw it."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    smem_bytes: int
    stream: int
    attributes: list[tuple[int, int]]
    """The numbers of the launch's attributes, with their values."""
    function: int
    parameters: list[bytes]


class FakeCuda:
    """`sizes` are the bytes of the kernel's parameters; a tensor map holds the tensor's address
    eight times, then a hash of all else."""

    replaced = 0
    """The number of addresses of tensor maps that were replaced."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        self.started: list[Started] = []
        self.encoded: list[tuple[Any, ...]] = []
        self.bound = 0
        self.contexts = True
        """Whether threads have a context before `bind`."""
        self.fails = False
        self.load_status = 0
        self.loaded: list[tuple[str, int]] = []
        """Names of the functions, with the shared memory that they were allowed."""
        self.preferring: list[str] = []
        """Names of the functions that prefer shared memory."""
        self.stream = 0
        self.capturing = False
        self.library = SimpleNamespace(
            cuLaunchKernelEx=_c(4)(self._launch),
            cuTensorMapEncodeTiled=ctypes.CFUNCTYPE(
                *(c_int, c_void_p, c_int, c_uint32), *[c_void_p] * 5, *[c_int] * 4
            )(self._encode),
            cuTensorMapReplaceAddress=_c(2)(self._replace),
            cuGetErrorString=ctypes.CFUNCTYPE(c_int, c_int, c_void_p)(self._error),
            cuDeviceGet=ctypes.CFUNCTYPE(c_int, c_void_p, c_int)(lambda handle, device: 0),
            cuDevicePrimaryCtxRetain=ctypes.CFUNCTYPE(c_int, c_void_p, c_int)(lambda *_: 0),
            cuCtxSetCurrent=_c(1)(self._bind),
            cuModuleLoadData=ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)(self._load),
            cuModuleGetFunction=ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, ctypes.c_char_p)(
                self._function
            ),
            cuFuncSetAttribute=ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_int)(self._allow),
            cuFuncSetCacheConfig=ctypes.CFUNCTYPE(c_int, c_void_p, c_int)(self._prefer),
            cuFuncGetParamInfo=ctypes.CFUNCTYPE(c_int, c_void_p, c_size_t, c_void_p, c_void_p)(
                self._parameter
            ),
        )
        streams = SimpleNamespace(
            _cuda_getCurrentRawStream=lambda device: self.stream,
            _cuda_isCurrentStreamCapturing=lambda: self.capturing,
        )
        self.driver = Driver(self.library, streams)

    def _status(self) -> int:
        if not self.contexts:
            return 201
        return 1 if self.fails else 0

    def _launch(self, config: int, function: int, parameters: int, extra: int) -> int:
        status = self._status()
        if status == 0:
            seen = CONFIG.unpack(ctypes.string_at(config, CONFIG.size))
            pointers = struct.unpack(
                f"{len(self.sizes)}Q", ctypes.string_at(parameters, 8 * len(self.sizes))
            )
            values = [
                ctypes.string_at(pointer, size)
                for pointer, size in zip(pointers, self.sizes, strict=True)
            ]
            assert (seen[8] == 0) is (seen[9] == 0) and extra is None
            attributes = ctypes.string_at(seen[8], seen[9] * ATTRIBUTE.size)
            self.started.append(
                Started(
                    seen[:3],
                    seen[3:6],
                    seen[6],
                    seen[7],
                    [*ATTRIBUTE.iter_unpack(attributes)],
                    function,
                    values,
                )
            )
        return status

    def _encode(self, place: int, dtype: int, rank: int, address: int, *rest: Any) -> int:
        status = self._status()
        if status == 0:
            dims, strides, box, element_strides, *modes = rest
            longs = [ctypes.string_at(x, 8 * rank) for x in (dims, strides)]
            words = [ctypes.string_at(x, 4 * rank) for x in (box, element_strides)]
            self.encoded.append(
                (
                    *(place % 64, dtype, address),
                    struct.unpack(f"{rank}Q", longs[0]),
                    struct.unpack(f"{rank}Q", longs[1])[: rank - 1],
                    *(struct.unpack(f"{rank}I", each) for each in words),
                    tuple(modes),
                )
            )
            others = hashlib.sha512(repr((dtype, *self.encoded[-1][3:])).encode()).digest()
            ctypes.memmove(place, struct.pack("Q", address) * 8 + others, 128)
        return status

    def _replace(self, place: int, address: int) -> int:
        status = self._status()
        if status == 0:
            self.replaced += 1
            ctypes.memmove(place, struct.pack("Q", address) * 8, 64)
        return status

    def _bind(self, context: int) -> int:
        self.bound += 1
        self.contexts = True
        return 0

    def _load(self, module: int, image: int) -> int:
        return self.load_status

    def _function(self, function: int, module: int, name: bytes) -> int:
        self.loaded.append((name.decode(), 0))
        c_void_p.from_address(function).value = 0xF00
        return 0

    def _allow(self, function: int, attribute: int, value: int) -> int:
        assert attribute == 8
        self.loaded[-1] = (self.loaded[-1][0], value)
        return 0

    def _prefer(self, function: int, preference: int) -> int:
        assert preference == 1
        self.preferring.append(self.loaded[-1][0])
        return 0

    def _parameter(self, function: int, number: int, offset: int, size: int) -> int:
        if number >= len(self.sizes):
            return 1
        c_size_t.from_address(size).value = self.sizes[number]
        return 0

    def _error(self, status: int, text: int) -> int:
        ctypes.c_char_p.from_address(text).value = b"invalid argument"
        return 0


def _c(count: int) -> Any:
    """The type of a C function of so many pointers."""
    return ctypes.CFUNCTYPE(c_int, *[c_void_p] * count)
