"""The GPUs of this machine, as torch will see them, and what a record or a prediction is for."""

from __future__ import annotations

import ctypes
import importlib.util
from ctypes import byref, c_char_p, c_int, c_size_t
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from tunefa import arch as archs
from tunefa.arch import Arch, Device, NpuArch
from tunefa.errors import TunefaError
from tunefa.languages.ascend import npu_there

DEFAULT_ARCH = "sm90"
"""Predicted for where there is no device and none is named."""


@dataclass(frozen=True)
class Seen:
    """A device that torch can use."""

    name: str
    """As the driver names it."""
    compute_capability: tuple[int, int]
    sms: int
    memory_bytes: int


@dataclass(frozen=True)
class Target:
    """What to compile and predict for, and whether it can be measured here."""

    arch: Arch
    device: Device
    present: bool
    """Whether `device` is the one of this machine."""


def driver_is_there() -> bool:
    """Whether NVIDIA's driver can be loaded."""
    return _driver() is not None


def seen() -> list[Seen]:
    """Every device that torch can use, in its order; none without a driver or without torch.

    The driver says it: importing torch and waking a device through it takes seconds, which a search
    has better uses for. Both obey CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.
    """
    driver = _driver()
    count = c_int()
    if driver is None or not _torch_has_cuda():
        return []
    if driver.cuInit(0) or driver.cuDeviceGetCount(byref(count)):  # no device is an error, too
        return []
    return [_device(driver, index) for index in range(count.value)]


def _device(driver: Any, index: int) -> Seen:
    handle, name, memory_bytes = c_int(), ctypes.create_string_buffer(256), c_size_t()
    driver.cuDeviceGet(byref(handle), index)
    driver.cuDeviceGetName(name, len(name), handle)
    driver.cuDeviceTotalMem_v2(byref(memory_bytes), handle)

    def attribute(number: int) -> int:
        value = c_int()
        driver.cuDeviceGetAttribute(byref(value), number, handle)
        return value.value

    capability = (attribute(_MAJOR), attribute(_MINOR))
    said = c_char_p(name.raw).value or b""
    return Seen(said.decode(errors="replace"), capability, attribute(_SMS), memory_bytes.value)


# CUdevice_attribute (cuda.h).
_SMS, _MAJOR, _MINOR = 16, 75, 76


def _driver() -> Any:
    """libcuda; None where it cannot be loaded."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _torch_has_cuda() -> bool:
    """Whether the torch that would be imported was built for CUDA."""
    found = importlib.util.find_spec("torch")
    origin = found and found.origin
    return bool(origin) and (Path(str(origin)).parent / "lib" / "libtorch_cuda.so").exists()


def described(device: Seen) -> tuple[Arch, Device]:
    """The arch and device of one that is there.

    A product without an entry of its own (an RTX 4090 Laptop GPU, say) takes the peaks of its
    arch's default device with its own SM count. Raises TunefaError for an arch without a file.
    """
    try:
        return archs.find(device.name)
    except TunefaError:
        pass
    name = "sm{}{}".format(*device.compute_capability)
    if name not in archs.names("nvidia"):
        raise TunefaError(
            f"{device.name} is {name}, which tunefa does not know: name one of "
            f"{', '.join(archs.names('nvidia'))} with --arch, or add tunefa/archs/{name}.yaml"
        )
    arch = archs.load(name)
    match = (device.name.lower(),)
    return arch, replace(arch.device(), name=device.name, match=match, sms=device.sms)


def choose(arch_name: str | None, device_name: str | None) -> Target:
    """The target that `--arch` and `--device` mean; by default the device of this machine.

    `arch_name` may name a device ("h200"). Says on standard error what it chose by itself. Raises
    TunefaError for unknown names, click.UsageError for two that contradict each other.
    """
    there = next(iter(seen()), None)
    if arch_name is None and device_name is None:
        if there is not None:
            return Target(*described(there), present=True)
        arch = archs.load(DEFAULT_ARCH)
        click.echo(
            f"No GPU here and no --arch: taking {arch.name}, {arch.device().name}.", err=True
        )
        return Target(arch, arch.device(), present=False)
    arch, device, is_named = named(arch_name, device_name)
    if isinstance(arch, NpuArch):
        npu = npu_there()
        present = npu is not None and npu in arch.devices and (not is_named or npu == device)
        return Target(arch, npu if present and npu else device, present)
    if there is not None:
        arch_there, device_there = described(there)
        if arch_there.name == arch.name and (not is_named or device_there.name == device.name):
            return Target(arch_there, device_there, present=True)
    return Target(arch, device, present=False)


def named(arch_name: str | None, device_name: str | None) -> tuple[Arch, Device, bool]:
    """(arch, device, whether the device was named and is not just the arch's default one).

    At least one name must be given. Raises as `choose` does.
    """
    if arch_name is None:
        return *archs.find(device_name or ""), True
    arch, device = archs.find(arch_name)
    is_device = arch_name.strip().lower() != arch.name
    if device_name is None:
        return arch, device, is_device
    asked = arch.device(device_name)
    if is_device and asked != device:
        raise click.UsageError(
            f"--arch {arch_name} is the device {device.name}, --device {device_name} is "
            f"{asked.name}: leave out one of them"
        )
    return arch, asked, True


def same(name: str | None, device: Device) -> bool:
    """Whether a driver's `name` means `device`: drivers spell one product in several ways."""
    if name is None:
        return False
    try:
        return name == device.name or archs.find(name)[1] == device
    except TunefaError:  # a product without an entry of its own
        return False
