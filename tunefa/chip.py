"""The chip behind a PyTorch device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tunefa import arch as archs
from tunefa.arch import Arch


@dataclass(frozen=True)
class Chip:
    """What there is to know about a device before choosing for it."""

    name: str
    """As the driver says it."""
    arch: Arch | None
    why_not: str = ""
    """Why kernels do not run on it; "" where there is an arch."""

    @classmethod
    def of(cls, device: torch.device) -> Chip:
        """The chip behind a PyTorch device."""
        if device.type != "cuda":
            return cls(device.type, None, f"q is on {device.type}, and kernels run on CUDA devices")
        name = torch.cuda.get_device_name(device)
        if torch.version.hip is not None:  # its capabilities are numbered like NVIDIA's
            return cls(name, None, f"{name} is an AMD device, and there is no kernel for it")
        major, minor = torch.cuda.get_device_capability(device)
        known = archs.names("nvidia")
        if f"sm{major}{minor}" not in known:
            why = f"there is no arch sm{major}{minor} for {name} (known: {', '.join(known)})"
            return cls(name, None, why)
        return cls(name, archs.load(f"sm{major}{minor}"))
