"""The CUDA driver through ctypes: what launches need of it, and the devices of this machine.

cuda-bindings could do the same, but takes 0.15 s to import and 0.9 us for each launch; ctypes with
prepared arguments takes 0.3 us (both without the driver's own time).
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import byref, c_int, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any
from uuid import UUID

SUCCESS = 0
INVALID_CONTEXT = 201
"""CUDA_ERROR_INVALID_CONTEXT: the thread has no current context, such as a new thread."""
_NON_BLOCKING = 1
_RELAXED = 2
_MAX_DYNAMIC_SMEM = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, which must be set for more than 48 KiB."""
_UNASKED_SMEM = 48 * 1024
_PREFER_SHARED = 1
"""CU_FUNC_CACHE_PREFER_SHARED."""


# CUdevice_attribute (cuda.h).
_SMS, _MAJOR, _MINOR = 16, 75, 76


class DriverError(RuntimeError):
    """A call of the driver failed. The message is the driver's."""

    def __init__(self, status: int, name: str, words: str) -> None:
        super().__init__(f"CUDA error {status} in {name}: {words}")
        self.status = status

    @property
    def is_image_too_new(self) -> bool:
        """Whether this driver does not know the format of a cubin.

        cuda.h: CUDA_ERROR_INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, UNSUPPORTED_PTX_VERSION.
        """
        return self.status in (200, 209, 218, 222)


class Driver:
    """libcuda (in tests, a replacement) and PyTorch's current streams.

    Methods raise DriverError if a call fails.
    """

    def __init__(self, library: Any, streams: Any) -> None:
        self._library = library
        self.launch = library.cuLaunchKernelEx
        """(config, function, parameters, extra) -> status."""
        self.encode = getattr(library, "cuTensorMapEncodeTiled", None)
        """Writes a tensor map, see `TensorMap.arguments`; None with drivers before CUDA 12."""
        self.replace = getattr(library, "cuTensorMapReplaceAddress", None)
        """(map, address) -> status, and the map is of a tensor there; None where `encode` is."""
        self.current_stream = streams._cuda_getCurrentRawStream
        """(device index) -> the handle of PyTorch's current stream on that device."""
        self.is_capturing = streams._cuda_isCurrentStreamCapturing
        """() -> whether a CUDA graph is being captured on the current stream."""

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function of the driver."""
        self._check(getattr(self._library, name)(*arguments), name)

    def call_on(self, device: int, name: str, *arguments: Any) -> None:
        """Does what `call` does, and first makes the device's context current if there is none."""
        status = getattr(self._library, name)(*arguments)
        if status == INVALID_CONTEXT:
            self.bind(device)
            status = getattr(self._library, name)(*arguments)
        self._check(status, name)

    def bind(self, device: int) -> None:
        """Makes the device's primary context, which PyTorch uses, current in this thread."""
        handle, context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(handle), c_int(device))
        self.call("cuDevicePrimaryCtxRetain", byref(context), handle)
        self.call("cuCtxSetCurrent", context)

    def relax_capture(self) -> None:
        """Allows this thread to load and allocate while any thread captures a CUDA graph.

        Without it, such calls invalidate the capture (CUDA driver API,
        cuThreadExchangeStreamCaptureMode).
        """
        self.call("cuThreadExchangeStreamCaptureMode", byref(c_int(_RELAXED)))

    def new_stream(self) -> int:
        """Returns the handle of a new stream that does not wait for the default stream."""
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), c_uint32(_NON_BLOCKING))
        return stream.value or 0

    def load_function(
        self, image: bytes, name: str, smem_bytes: int, prefers_smem: bool = False
    ) -> int:
        """Loads a kernel of a cubin into the current context, and returns its CUfunction.

        It may then be launched with `smem_bytes` of dynamic shared memory. `prefers_smem`: whether
        it gets more shared memory than L1 cache, as Triton's launcher asks for where kernels use
        more than 48 KiB.
        """
        module, function = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), ctypes.c_char_p(image))
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        if smem_bytes > _UNASKED_SMEM:
            if prefers_smem:
                self.call("cuFuncSetCacheConfig", function, c_int(_PREFER_SHARED))
            self.call("cuFuncSetAttribute", function, c_int(_MAX_DYNAMIC_SMEM), c_int(smem_bytes))
        return function.value or 0

    def parameter_sizes(self, function: int, most: int) -> list[int] | None:
        """Returns the sizes in bytes of up to `most` parameters; None with drivers before 12.4.

        It does not ask for more than `most`: the driver's error would show up in debugging tools.
        """
        ask = getattr(self._library, "cuFuncGetParamInfo", None)
        if ask is None:
            return None
        sizes: list[int] = []
        offset, size = c_size_t(), c_size_t()
        while len(sizes) < most:
            where = c_void_p(function), c_size_t(len(sizes)), byref(offset), byref(size)
            if ask(*where) != SUCCESS:
                break
            sizes.append(size.value)
        return sizes

    def _check(self, status: int, name: str) -> None:
        if status != SUCCESS:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(c_int(status), byref(text))
            words = (text.value or b"unknown error").decode()
            raise DriverError(status, name, words)


@functools.cache
def load() -> Driver:
    """Returns the driver of this machine, with PyTorch's streams."""
    import torch  # takes seconds; `devices` does not need it

    return Driver(ctypes.CDLL("libcuda.so.1"), torch._C)


# ---------------------------------------------------------------------------------- which devices


@dataclass(frozen=True)
class SeenDevice:
    """A device of this machine, as its driver reports it."""

    name: str
    compute_capability: tuple[int, int]
    sms: int
    memory_bytes: int


def is_there() -> bool:
    """Returns whether NVIDIA's driver can be loaded."""
    return library() is not None


def devices() -> list[SeenDevice]:
    """Returns the devices of this machine, in PyTorch's order; none without a driver.

    torch could tell them as well, but takes seconds to import and to initialise a device. Both
    respect CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.
    """
    found, count = library(), c_int()
    if found is None:
        return []
    # cuInit fails if there is no device.
    if found.cuInit(0) or found.cuDeviceGetCount(byref(count)):
        return []
    return [_device(found, index) for index in range(count.value)]


@functools.cache  # devices do not change while a process runs
def device(index: int) -> SeenDevice:
    """Returns the device that PyTorch calls cuda:index. Raises IndexError if there is none."""
    return devices()[index]


def make_context(index: int = 0) -> None:
    """Makes the primary context of cuda:index, which PyTorch uses; where that fails, PyTorch says
    why. It takes up to a second, in which other threads of Python go on."""
    found, handle, context = library(), c_int(), c_void_p()
    if found is None or found.cuInit(0) or found.cuDeviceGet(byref(handle), c_int(index)):
        return
    found.cuDevicePrimaryCtxRetain(byref(context), handle)


def uuid(index: int) -> str:
    """Returns the UUID of cuda:index in NVML's format: `GPU-` and five groups of hex digits.

    Raises DriverError if there is no such device.
    """
    handle, raw = c_int(), (ctypes.c_ubyte * 16)()
    driver = load()
    driver.call("cuDeviceGet", byref(handle), c_int(index))
    driver.call("cuDeviceGetUuid", byref(raw), handle)
    return f"GPU-{UUID(bytes=bytes(raw))}"


def _device(library: Any, index: int) -> SeenDevice:
    """Returns the device with this number, without making a context on it."""
    handle, name, memory_bytes = c_int(), ctypes.create_string_buffer(256), c_size_t()
    library.cuDeviceGet(byref(handle), index)
    library.cuDeviceGetName(name, len(name), handle)
    library.cuDeviceTotalMem_v2(byref(memory_bytes), handle)

    def attribute(number: int) -> int:
        value = c_int()
        library.cuDeviceGetAttribute(byref(value), number, handle)
        return value.value

    capability = (attribute(_MAJOR), attribute(_MINOR))
    said = ctypes.c_char_p(name.raw).value or b""
    return SeenDevice(
        said.decode(errors="replace"), capability, attribute(_SMS), memory_bytes.value
    )


def library() -> Any:
    """Returns libcuda; None if it cannot be loaded."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
