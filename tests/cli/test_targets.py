"""The GPUs of this machine, as tunefa/compile/launch/driver.py asks the driver for them."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_void_p
from types import SimpleNamespace
from typing import Any

import pytest

from tunefa.cli import targets
from tunefa.cli.targets import seen
from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice


class FakeDriver:
    """libcuda with some devices."""

    def __init__(self, *found: SeenDevice, status: int = 0) -> None:
        self.found, self.status = found, status
        kinds: dict[str, tuple[Any, ...]] = {
            "cuInit": (ctypes.c_uint,),
            "cuDeviceGetCount": (POINTER(c_int),),
            "cuDeviceGet": (POINTER(c_int), c_int),
            "cuDeviceGetName": (c_void_p, c_int, c_int),
            "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
            "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
        }
        made = {name: ctypes.CFUNCTYPE(c_int, *kinds[name])(getattr(self, name)) for name in kinds}
        self.library = SimpleNamespace(**made)

    def cuInit(self, flags: int) -> int:
        return self.status

    def cuDeviceGetCount(self, count: Any) -> int:
        count[0] = len(self.found)
        return 0

    def cuDeviceGet(self, handle: Any, index: int) -> int:
        handle[0] = index + 7
        return 0

    def cuDeviceGetName(self, name: int, size: int, handle: int) -> int:
        text = self.found[handle - 7].name.encode()[: size - 1]
        ctypes.memmove(name, c_char_p(text), len(text) + 1)
        return 0

    def cuDeviceTotalMem_v2(self, memory_bytes: Any, handle: int) -> int:
        memory_bytes[0] = self.found[handle - 7].memory_bytes
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, handle: int) -> int:
        device = self.found[handle - 7]
        major, minor = device.compute_capability
        value[0] = {16: device.sms, 75: major, 76: minor}[number]
        return 0


H200 = SeenDevice("NVIDIA H200", (9, 0), 132, 150_754_820_096)
L4 = SeenDevice("NVIDIA L4", (8, 9), 58, 23_000_000_000)


def put(monkeypatch: pytest.MonkeyPatch, fake: FakeDriver | None, cuda: bool = True) -> None:
    monkeypatch.setattr(driver, "library", lambda: fake and fake.library)
    monkeypatch.setattr(targets, "_torch_has_cuda", lambda: cuda)


def test_all_devices_in_the_driver_s_order(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, FakeDriver(L4, H200))
    assert seen() == [L4, H200] and driver.is_there()


@pytest.mark.parametrize("status", [100, 803])  # no device; a driver that does not fit
def test_a_driver_that_cannot_start_sees_none(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    put(monkeypatch, FakeDriver(H200, status=status))
    assert seen() == []


def test_neither_a_driver_nor_a_torch_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, None)
    assert seen() == [] and not driver.is_there()
    put(monkeypatch, FakeDriver(H200), cuda=False)
    assert seen() == []


def test_this_torch_is_asked_without_importing_it() -> None:
    import torch

    assert targets._torch_has_cuda() == (torch.version.cuda is not None)
