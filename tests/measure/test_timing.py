"""tunefa/measure/timing.py: what a call costs in each mode. Real calls: tests/gpu."""

from __future__ import annotations

import time

import pytest

from tunefa.measure import timing
from tunefa.spec.trial import Mode


@pytest.mark.parametrize(
    ("mode", "device_us", "host_us", "latency_us"),
    [
        ("eager", 100.0, 30.0, 100.0),
        ("eager", 20.0, 30.0, 30.0),
        ("graph", 100.0, 30.0, 100.0),
        ("graph", 20.0, 30.0, 20.0),
        ("step", 20.0, 30.0, 20.0),
    ],
)
def test_the_host_counts_where_it_launches(
    mode: Mode, device_us: float, host_us: float, latency_us: float
) -> None:
    assert timing.latency_us(mode, device_us, host_us) == latency_us


@pytest.mark.parametrize(
    ("beside_us", "device_us", "added_us"), [(7.5, 12.0, 4.5), (7.5, 7.6, 0.5), (7.5, 7.0, 0.5)]
)
def test_a_launch_in_a_step_costs_what_it_adds(
    beside_us: float, device_us: float, added_us: float
) -> None:
    replay = timing.Replay(None, beside_us)
    assert timing.added_us(replay, device_us) == pytest.approx(added_us)
    assert timing.added_us(lambda: None, device_us) == device_us


def test_the_host_is_timed_call_by_call() -> None:
    calls = [lambda: time.sleep(0.002), lambda: time.sleep(0.01)]
    (quick, quick_host), (slow, slow_host) = timing.HostStopwatch().times_us(calls)
    assert (quick, slow) == (quick_host, slow_host)
    assert 2_000 < quick < slow and 10_000 < slow < 100_000
