"""tunefa/measure/monitor.py: readings of a fake NVML."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tunefa.measure.monitor import Monitor


class NVMLError(Exception):
    """Stands in for pynvml's."""


def nvml(reasons: int = 0, processes: int = 1, fails: bool = False) -> Any:
    def clock(*_: Any) -> int:
        if fails:
            raise NVMLError
        return 1755

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetClockInfo=clock,
        nvmlDeviceGetPowerUsage=lambda handle: 698_400,
        nvmlDeviceGetTemperature=lambda handle, sensor: 61,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: reasons,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [object()] * processes,
        nvmlShutdown=lambda: None,
    )


def watched(**kind: Any) -> Monitor:
    monitor = Monitor(_nvml=nvml(**kind))
    monitor.read()
    return monitor


def test_readings_are_summed_up() -> None:
    assert watched(reasons=0x04).summary() == {
        "watched": True, "sm_mhz": [1755, 1755], "power_w": [698, 698],
        "temperature_c": [61, 61], "power_capped": True, "disturbance": None,
    }  # fmt: skip


def test_heat_and_company_disturb_the_power_cap_does_not() -> None:
    assert watched(reasons=0x04).disturbance is None
    assert watched(reasons=0x44).disturbance == "thermal slowdown (hardware)"
    assert watched(processes=3).disturbance == "2 other process(es) on the device"


def test_without_nvml_nothing_is_claimed() -> None:
    monitor = Monitor()
    monitor.read()
    assert monitor.summary() == {"watched": False} and monitor.disturbance is None
    assert watched(fails=True).summary() == {"watched": False}
