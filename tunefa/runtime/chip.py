"""The chip behind a PyTorch device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from tunefa.compile.launch import driver
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Target


@dataclass(frozen=True)
class Chip:
    """What there is to know about a device before choosing for it."""

    name: str
    """As the driver says it."""
    target: Target | None
    """What kernels are compiled for, its device by the driver's name; None where none run."""
    why_not: str = ""
    """Why kernels do not run on it; "" where there is a target."""

    @classmethod
    def of(cls, device: torch.device) -> Chip:
        """The chip behind a PyTorch device."""
        if device.type != "cuda":
            return cls(device.type, None, f"q is on {device.type}, and kernels run on CUDA devices")
        if torch.version.hip is not None:  # its capabilities are numbered like NVIDIA's
            name = torch.cuda.get_device_name(device)
            return cls(name, None, f"{name} is an AMD device, and there is no kernel for it")
        index = torch.cuda.current_device() if device.index is None else device.index
        return cls.of_seen(driver.device(index))

    @classmethod
    def of_seen(cls, seen: driver.SeenDevice) -> Chip:
        """The chip that the driver describes so."""
        major, minor = seen.compute_capability
        known = archs.names("nvidia")
        if f"sm{major}{minor}" not in known:
            why = f"there is no arch sm{major}{minor} for {seen.name} (known: {', '.join(known)})"
            return cls(seen.name, None, why)
        found = Target.seen(seen.name, seen.compute_capability, seen.sms)
        arch = archs.load(f"sm{major}{minor}")
        # Records name devices as the driver does, and one name may mean a product of several.
        return cls(
            seen.name, replace(found, arch=arch, device=replace(found.device, name=seen.name))
        )
