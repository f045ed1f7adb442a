"""The GPUs of this machine, as torch sees them, and what a record or a prediction is for."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import click

from tunefa import arch as archs
from tunefa.arch import Arch, Device
from tunefa.errors import TunefaError

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
    """Whether NVIDIA's driver can be loaded; without it there is no need to import torch."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def seen() -> list[Seen]:
    """Every device that torch can use, in its order; none without a driver or without torch."""
    if not driver_is_there():
        return []
    try:
        import torch
    except ImportError:
        return []
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = (properties.major, properties.minor)
        sms = properties.multi_processor_count
        found.append(Seen(properties.name, capability, sms, properties.total_memory))
    return found


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
