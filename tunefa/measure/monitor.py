"""The state of the device while it is measured: clocks, power, temperature, throttling, and other
processes on it.

It is read through NVIDIA's bindings of NVML (nvidia-ml-py). Without them, or without the rights to
use them, a race is still run, and its certificate says that the device was not watched.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from tunefa.compile.launch import driver

# NVML API reference, nvmlClocksEventReasons. The power cap is no disturbance: an H200 runs
# attention at its 700 W limit all the time, and it slows all configs of an interleaved round alike.
_DISTURBANCES = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}
_POWER_CAP = 0x04


@dataclass
class Monitor:
    """Reads NVML once per round of a race. A context manager."""

    sm_mhz: list[int] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)
    temperature_c: list[int] = field(default_factory=list)
    reasons: int = 0
    other_processes: int = 0
    """The largest number of other compute processes that was seen on the device."""
    _nvml: Any = None
    _handle: Any = None

    def __enter__(self) -> Monitor:
        import torch

        with contextlib.suppress(ImportError):
            import pynvml

            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                uuid = driver.uuid(torch.cuda.current_device())
                self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                self._nvml = pynvml
        return self

    def __exit__(self, *_: object) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()

    def read(self) -> None:
        """Takes one reading, which takes tens of microseconds."""
        nvml, handle = self._nvml, self._handle
        if nvml is None:
            return
        with contextlib.suppress(nvml.NVMLError):
            self.sm_mhz.append(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
            self.power_w.append(nvml.nvmlDeviceGetPowerUsage(handle) / 1000.0)
            celsius = nvml.NVML_TEMPERATURE_GPU
            self.temperature_c.append(nvml.nvmlDeviceGetTemperature(handle, celsius))
            self.reasons |= nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            running = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            self.other_processes = max(self.other_processes, len(running) - 1)

    @property
    def disturbance(self) -> str | None:
        """The reason that the times of this period cannot be trusted; None without disturbance."""
        found = [name for bit, name in _DISTURBANCES.items() if self.reasons & bit]
        if self.other_processes > 0:
            found.append(f"{self.other_processes} other process(es) on the device")
        return ", ".join(found) or None

    def summary(self) -> dict[str, Any]:
        """Plain data for a certificate: the range of the readings, and what limited the clocks."""
        if not self.sm_mhz:
            return {"watched": False}
        return {
            "watched": True,
            "sm_mhz": [min(self.sm_mhz), max(self.sm_mhz)],
            "power_w": [round(min(self.power_w)), round(max(self.power_w))],
            "temperature_c": [min(self.temperature_c), max(self.temperature_c)],
            "power_capped": bool(self.reasons & _POWER_CAP),
            "disturbance": self.disturbance,
        }
