"""What the device did while it was measured: clocks, power, temperature, throttling, company.

Through NVIDIA's own bindings of NVML (nvidia-ml-py). Without them, or without rights to ask, a race
is still run, and its certificate says that nothing was watched.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from tunefa.compile.launch import driver

# NVML API reference, nvmlClocksEventReasons. The power cap is not among them: an H200 runs
# attention at its 700 W limit all the time, and interleaved rounds share it.
_DISTURBANCES = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}
_POWER_CAP = 0x04


@dataclass
class Monitor:
    """Reads NVML once per round; see `summary`. A context manager."""

    sm_mhz: list[int] = field(default_factory=list)
    power_w: list[float] = field(default_factory=list)
    temperature_c: list[int] = field(default_factory=list)
    reasons: int = 0
    company: int = 0
    """Most compute processes seen beside this one."""
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
        """One reading; tens of microseconds."""
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
            self.company = max(self.company, len(running) - 1)

    @property
    def disturbance(self) -> str | None:
        """Why what was measured meanwhile cannot be trusted; None if nothing spoke against it."""
        found = [name for bit, name in _DISTURBANCES.items() if self.reasons & bit]
        if self.company > 0:
            found.append(f"{self.company} other process(es) on the device")
        return ", ".join(found) or None

    def summary(self) -> dict[str, Any]:
        """Plain data for a certificate: lowest and highest readings, what limited the clocks."""
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
