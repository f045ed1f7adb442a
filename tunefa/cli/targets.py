"""Finds the chip that `--arch` and `--device` name, or that of this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

import click

from tunefa.compile.languages.ascend import available_npu
from tunefa.compile.launch import driver
from tunefa.compile.launch.driver import SeenDevice
from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.arch import Device, NpuArch
from tunefa.spec.target import Target

DEFAULT_ARCH = "sm90"
"""The arch to predict for if there is no device and none is named."""


class ChosenTarget(NamedTuple):
    """The target to compile for, and whether it can be measured on this machine."""

    target: Target
    present: bool
    """Whether the target is the device of this machine."""


def seen() -> list[SeenDevice]:
    """The devices that torch can use, in its order; none without a driver or without torch."""
    return driver.devices() if _torch_has_cuda() else []


def described(device: SeenDevice) -> Target:
    """The target of a device of this machine. Raises TunefaError if no file describes its arch."""
    return Target.seen(device.name, device.compute_capability, device.sms)


def _torch_has_cuda() -> bool:
    """Whether the torch that would be imported was built for CUDA."""
    found = importlib.util.find_spec("torch")
    origin = found and found.origin
    return bool(origin) and (Path(str(origin)).parent / "lib" / "libtorch_cuda.so").exists()


def choose(arch_name: str | None, device_name: str | None) -> ChosenTarget:
    """The target that `--arch` and `--device` mean; by default the device of this machine.

    `arch_name` may name a device ("h200"). A default other than this machine's device is reported
    on standard error. Raises TunefaError for unknown names, and click.UsageError for two names that
    contradict each other.
    """
    there = next(iter(seen()), None)
    if arch_name is None and device_name is None:
        if there is not None:
            return ChosenTarget(described(there), present=True)
        target = Target.named(DEFAULT_ARCH)
        click.echo(f"No GPU in this machine and no --arch: the target is {target}.", err=True)
        return ChosenTarget(target, present=False)
    target, is_named = named(arch_name, device_name)
    arch, device = target.arch, target.device
    if isinstance(arch, NpuArch):
        npu = available_npu()
        present = npu is not None and npu in arch.devices and (not is_named or npu == device)
        return ChosenTarget(Target(arch, npu if present and npu else device), present)
    if there is not None:
        target_there = described(there)
        same_device = not is_named or same(target_there.device.name, device)
        if target_there.arch.name == arch.name and same_device:
            return ChosenTarget(target_there, present=True)
    return ChosenTarget(target, present=False)


def named(arch_name: str | None, device_name: str | None) -> tuple[Target, bool]:
    """Returns the target, and whether its device was named and is not just the arch's default.

    At least one name must be given. Raises the errors of `choose`.
    """
    if arch_name is None:
        return Target.named(device_name or ""), True
    target = Target.named(arch_name)
    arch, device = target.arch, target.device
    is_device = arch_name.strip().lower() != arch.name
    if device_name is None:
        return target, is_device
    asked = arch.device(device_name)
    if is_device and asked != device:
        raise click.UsageError(
            f"--arch {arch_name} is the device {device.name}, --device {device_name} is "
            f"{asked.name}: leave out one of them"
        )
    return Target(arch, asked), True


def same(name: str | None, device: Device) -> bool:
    """Whether a driver's `name` means `device`. Drivers have several names for one product."""
    if name is None:
        return False
    try:
        return name == device.name or archs.find(name)[1] == device
    except TunefaError:  # a product without an entry of its own
        return False
