"""Times launches on the current device: events around each, cold L2, one sample a launch.

A launch that finds its inputs in the L2 cache is timed under conditions no model offers, so
the cache is overwritten before each. The work that does it also keeps the queue full, so that
events see the device alone. What a call costs depends on how it is made, the mode:

* `eager`: the longer of its time on the device and of what the host takes to launch it, for a
  queue that is filled too slowly runs dry;
* `graph`: the time on the device, of a launch that was captured into a CUDA graph.

An NPU of Huawei is timed through torch_npu, whose events and streams are those of torch.cuda by
name, and launches are eager. That was not run on one.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from tunefa.spec.trial import Mode

BoundLaunch = Callable[[], Any]
"""A launch with its tensors."""

FLUSH_BYTES = {"cuda": 256 * 2**20, "npu": 512 * 2**20}
"""More than the largest L2 twice: 126 MB of a B200, 192 MiB of a 910B."""
_WARMUP = 2


class Stopwatch:
    """Holds the buffer that evicts the L2 cache."""

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
        """What is timed of a launch: itself, or the replay of the graph that it was captured in.

        It has run then, so that nothing is loaded or compiled while it is captured or timed.
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
        """One latency of each prepared launch in us, in their order; nothing warms up."""
        return [latency_us(self.mode, *each) for each in self.times_us(launches)]

    def rounds_us(self, launches: Sequence[BoundLaunch], rounds: int) -> list[list[float]]:
        """Device times of each launch over interleaved rounds, each beginning one further on.

        All candidates see the same clocks and temperatures; none is always first. What the host
        takes is left out in either mode.
        """
        for launch in launches:
            launch()
        samples: list[list[float]] = [[] for _ in launches]
        for round_ in range(rounds):
            order = [(round_ + i) % len(launches) for i in range(len(launches))]
            times = self.times_us([launches[i] for i in order])
            for index, (device_us, _) in zip(order, times, strict=True):
                samples[index].append(device_us)
        return samples

    def times_us(self, launches: Sequence[BoundLaunch]) -> list[tuple[float, float]]:
        """(device us, host us) of each prepared launch; none waits for the one before."""
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


def latency_us(mode: Mode, device_us: float, host_us: float) -> float:
    """What a call costs in that mode."""
    return max(device_us, host_us) if mode == "eager" else device_us


def _repeat(launch: BoundLaunch, times: int) -> None:
    for _ in range(times):
        launch()
