"""Times launches on the current device: with events around each, and a cold L2 cache.

In a language model, other kernels have replaced the inputs in the L2 cache. So the cache is
overwritten before each launch. That work also keeps the queue full, so that the events time the
device alone. What a call costs depends on how it is made, its mode:

* `eager`: PyTorch's ordinary calls. The cost is the longer of the time on the device and the host's
  time to launch, as a device whose queue is filled too slowly waits for the host.
* `graph`: the launch is captured into a CUDA graph and replayed. The cost is the time on the
  device.

Huawei's NPUs are timed in eager mode through torch_npu, whose events and streams have the names of
torch.cuda's. That code was never run on an NPU.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from tunefa.spec.trial import Mode

BoundLaunch = Callable[[], Any]
"""Launches a kernel on tensors that it holds."""

FLUSH_BYTES = {"cuda": 256 * 2**20, "npu": 512 * 2**20}
"""Over twice the bytes of the largest L2: 126 MB on a B200, 192 MiB on a 910B."""
_WARMUP = 2


class Stopwatch:
    """Times launches; holds the buffer that overwrites the L2 cache."""

    def __init__(self, mode: Mode, device: str = "cuda") -> None:
        """`device`: "cuda", or "npu" where torch_npu is installed."""
        import torch

        if device == "npu":
            importlib.import_module("torch_npu")  # makes torch.npu
        self.mode = mode
        self._torch = torch
        self._device: Any = getattr(torch, device)
        self._flush = torch.empty(FLUSH_BYTES[device], dtype=torch.int8, device=device)

    def prepared(self, launch: BoundLaunch) -> BoundLaunch:
        """Returns what is timed: the launch itself, or the replay of a graph that it is captured
        in.

        The launch has run by then, so that nothing is loaded or compiled while it is captured or
        timed.
        """
        torch = self._torch
        if self.mode == "eager":
            _repeat(launch, _WARMUP)
            return launch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _repeat(launch, _WARMUP)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            launch()
        replay: BoundLaunch = graph.replay
        _repeat(replay, 1)  # the first one uploads the graph
        return replay

    def once_us(self, launches: Sequence[BoundLaunch]) -> list[float]:
        """Returns one latency of each prepared launch in us, in their order, without a warm-up."""
        return [latency_us(self.mode, *each) for each in self.times_us(launches)]

    def rounds_us(self, launches: Sequence[BoundLaunch], rounds: int) -> list[list[float]]:
        """Returns the device times of each launch, in us, over interleaved rounds.

        Each round begins with another launch than the one before. So all launches see the same
        clocks and temperatures, and none is always first. The host's time is left out in either
        mode.
        """
        for launch in launches:
            launch()
        samples: list[list[float]] = [[] for _ in launches]
        for round_ in range(rounds):
            rotated = [(round_ + i) % len(launches) for i in range(len(launches))]
            times = self.times_us([launches[i] for i in rotated])
            for index, (device_us, _) in zip(rotated, times, strict=True):
                samples[index].append(device_us)
        return samples

    def times_us(self, launches: Sequence[BoundLaunch]) -> list[tuple[float, float]]:
        """Returns (device us, host us) of each prepared launch; the host waits only at the end."""
        event: Any = self._device.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in launches]
        host_us = []
        for launch, (start, end) in zip(launches, pairs, strict=True):
            self._flush.zero_()
            start.record()
            begun = time.perf_counter()
            launch()
            host_us.append(1e6 * (time.perf_counter() - begun))
            end.record()
        self._device.synchronize()
        device_us = [1e3 * float(start.elapsed_time(end)) for start, end in pairs]
        return list(zip(device_us, host_us, strict=True))


class HostStopwatch:
    """Times calls on the CPU, one after the other; caches are as the last call left them."""

    mode: Mode = "eager"

    def prepared(self, launch: BoundLaunch) -> BoundLaunch:
        """Returns the call itself, which has run by then."""
        _repeat(launch, _WARMUP)
        return launch

    def once_us(self, launches: Sequence[BoundLaunch]) -> list[float]:
        """Returns one latency of each call in us, in their order, without a warm-up."""
        return [host_us for _, host_us in self.times_us(launches)]

    def times_us(self, launches: Sequence[BoundLaunch]) -> list[tuple[float, float]]:
        """Returns (us, us) of each call, as `Stopwatch.times_us` does: the host is the device."""
        times = []
        for launch in launches:
            begun = time.perf_counter()
            launch()
            host_us = 1e6 * (time.perf_counter() - begun)
            times.append((host_us, host_us))
        return times


AnyStopwatch = Stopwatch | HostStopwatch


def latency_us(mode: Mode, device_us: float, host_us: float) -> float:
    """The cost of a call in that mode, in us."""
    return max(device_us, host_us) if mode == "eager" else device_us


def _repeat(launch: BoundLaunch, times: int) -> None:
    for _ in range(times):
        launch()
