"""The chip behind a PyTorch device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tunefa.compile.launch import driver
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Target


@dataclass(frozen=True)
class Chip:
    """A device and its target, or the reason why kernels do not run on it."""

    name: str
    """The name that the driver gives."""
    target: Target | None
    """The target to compile for, see `Target.seen`; None if kernels do not run."""
    why_not: str = ""
    """The reason that kernels do not run on the device; "" where there is a target."""

    @classmethod
    def of(cls, device: torch.device) -> Chip:
        """The chip behind a PyTorch device."""
        if device.type != "cuda":
            return cls(device.type, None, f"q is on {device.type}, and kernels run on CUDA devices")
        if torch.version.hip is not None:  # its capabilities are numbered like NVIDIA's
            name = torch.cuda.get_device_name(device)  # CUDA's driver does not know it
            return cls(name, None, f"{name} is an AMD device, and there is no kernel for it")
        index = torch.cuda.current_device() if device.index is None else device.index
        return cls.of_seen(driver.device(index))

    @classmethod
    def of_seen(cls, seen: driver.SeenDevice) -> Chip:
        """The chip of a device that the driver describes."""
        major, minor = seen.compute_capability
        known = archs.names("nvidia")
        if f"sm{major}{minor}" not in known:
            why = f"there is no arch sm{major}{minor} for {seen.name} (known: {', '.join(known)})"
            return cls(seen.name, None, why)
        return cls(seen.name, Target.seen(seen.name, seen.compute_capability, seen.sms))
