"""tunefa/compile/launch/driver.py against a library that stands in for libcuda."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fake_cuda import FakeCuda
from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import Driver, DriverError, SeenDevice


class TwoDevices:
    """libcuda of a machine with two devices; `status` is what cuInit says."""

    def __init__(self, status: int = 0) -> None:
        self.status = status

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 2
        return 0

    def cuDeviceGet(self, handle: Any, index: Any) -> int:
        index = getattr(index, "value", index)
        handle._obj.value = 100 + index
        return 0 if index < 2 else 101

    def cuDeviceGetName(self, name: Any, size: int, handle: Any) -> int:
        name.value = [b"NVIDIA H200", b"NVIDIA \xff A100"][handle.value - 100]
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, handle: Any) -> int:
        size._obj.value = 2**37
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, handle: Any) -> int:
        hopper = handle.value == 100
        value._obj.value = {16: 132 if hopper else 108, 75: 9 if hopper else 8, 76: 0}[number]
        return 0

    def cuDeviceGetUuid(self, raw: Any, handle: Any) -> int:
        raw._obj[:] = range(16)
        return 0

    def cuGetErrorString(self, status: Any, text: Any) -> int:
        text._obj.value = b"invalid device ordinal"
        return 0


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoDevices]:
    """In place of libcuda.so.1."""
    made = TwoDevices()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: made)
    driver.device.cache_clear()
    yield made
    driver.device.cache_clear()


def test_devices_are_told_as_their_driver_has_them(library: TwoDevices) -> None:
    assert driver.is_there()
    assert driver.devices() == [
        SeenDevice("NVIDIA H200", (9, 0), 132, 2**37),
        SeenDevice("NVIDIA \N{REPLACEMENT CHARACTER} A100", (8, 0), 108, 2**37),
    ]
    assert driver.device(1).sms == 108
    with pytest.raises(IndexError):
        driver.device(2)


def test_a_driver_without_a_device_has_none(library: TwoDevices) -> None:
    library.status = 100  # CUDA_ERROR_NO_DEVICE
    assert driver.is_there() and driver.devices() == []


def test_without_a_driver_there_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert not driver.is_there() and driver.devices() == []


class Contexts(TwoDevices):
    """Remembers the devices of which a primary context was asked for."""

    def __init__(self, status: int = 0) -> None:
        super().__init__(status)
        self.made: list[int] = []

    def cuDevicePrimaryCtxRetain(self, context: Any, handle: Any) -> int:
        self.made.append(handle.value)
        return 0


@pytest.mark.parametrize(
    ("status", "index", "made"), [(0, 0, [100]), (0, 1, [101]), (0, 2, []), (100, 0, [])]
)
def test_a_context_is_made_where_there_is_a_device(
    monkeypatch: pytest.MonkeyPatch, status: int, index: int, made: list[int]
) -> None:
    library = Contexts(status)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    driver.make_context(index)
    assert library.made == made


def test_a_uuid_is_written_as_nvml_writes_it(
    library: TwoDevices, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = SimpleNamespace(_cuda_getCurrentRawStream=None, _cuda_isCurrentStreamCapturing=None)
    library.cuLaunchKernelEx = None  # type: ignore[attr-defined]
    monkeypatch.setattr(driver, "load", lambda: Driver(library, streams))
    assert driver.uuid(0) == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    with pytest.raises(DriverError, match="CUDA error 101 in cuDeviceGet: invalid device ordinal"):
        driver.uuid(2)


@pytest.mark.parametrize(
    ("status", "too_new"), [(200, True), (209, True), (218, True), (222, True), (2, False)]
)
def test_which_errors_mean_that_an_image_is_too_new(status: int, too_new: bool) -> None:
    assert DriverError(status, "cuModuleLoadData", "").is_image_too_new is too_new


def test_little_shared_memory_needs_no_leave() -> None:
    cuda = FakeCuda([8])
    for smem_bytes in (48 * 1024, 48 * 1024 + 1):
        cuda.driver.load_function(b"cubin", "kernel", smem_bytes)
    assert [smem for _, smem in cuda.loaded if smem] == [48 * 1024 + 1]


def test_sizes_of_parameters_are_asked_for_no_further_than_needed() -> None:
    cuda = FakeCuda([8, 8, 4])
    assert cuda.driver.parameter_sizes(1, 2) == [8, 8]
    assert cuda.driver.parameter_sizes(1, 9) == [8, 8, 4]
    del cuda.library.cuFuncGetParamInfo
    assert cuda.driver.parameter_sizes(1, 2) is None
