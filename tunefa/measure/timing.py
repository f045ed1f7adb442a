"""Times launches on the current device: with events around each, and a cold L2 cache.

In a language model, other kernels have replaced the inputs in the L2 cache. So the cache is filled
with other data before each launch. That work also keeps the queue full, and more of it comes before
the first launch of a batch, so that the events time the device alone. What a call costs depends on
how it is made, its mode:

* `eager`: PyTorch's ordinary calls. The cost is the longer of the time on the device and the host's
  time to launch, as a device whose queue is filled too slowly waits for the host. The cache is
  overwritten, as by the activations of a prompt or of a training step.
* `graph`: the launch is captured into a CUDA graph and replayed. The cost is the time on the
  device, with the start of the graph. The cache is overwritten, too.
* `step`: the launch is captured between two small kernels. The cost is what it adds to the time of
  the replay, as in a captured step of a model that writes token after token. The cache is filled by
  reading, as by the weights: data that were written must be written back before a kernel can fill
  the cache with its own, which costs up to 10 us on an H200.

Huawei's NPUs are timed in eager mode through torch_npu, whose events and streams have the names of
torch.cuda's. That code was never run on an NPU.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tunefa.spec.trial import Mode

BoundLaunch = Callable[[], Any]
"""Launches a kernel on tensors that it holds."""

FLUSH_BYTES = {"cuda": 256 * 2**20, "npu": 512 * 2**20}
"""Over twice the bytes of the largest L2: 126 MB on a B200, 192 MiB on a 910B."""
RESOLUTION_US = 0.5
"""The resolution of CUDA's events (its runtime's manual, cudaEventElapsedTime): no launch is taken
to take less."""
_WARMUP = 2
_AHEAD = 4
"""The fills of the cache before the first launch of a batch: 0.3 ms on an H200. So the host is
ahead of the device when it comes to that launch, also if it was just woken up or shares its cores
with compilers. Otherwise the device would wait between the first events for the host."""
_EMPTY_SAMPLES = 15
"""The last replays without a launch whose median counts: it follows the clocks of the device."""


@dataclass(frozen=True)
class Replay:
    """Replays a launch that was captured between two other kernels."""

    graph: Any

    def __call__(self) -> None:
        self.graph.replay()


class _Neighbours:
    """The work around a launch in a step: data that fill the cache, and two small kernels."""

    def __init__(self, flush: Any) -> None:
        """Fills the memory `flush` with zeros. Both kernels run, as none may be loaded while a
        graph is captured."""
        import torch

        self._read = torch.sum
        self._weights = flush.zero_().view(torch.float32)
        self._sum, self._row = (torch.zeros(n, device=flush.device) for n in (1, 4096))
        self.fill_cache()
        self._kernel()
        self.alone: BoundLaunch = _captured(self._kernel, self._kernel).replay
        """Replays the small kernels without a launch."""
        self.alone()

    def fill_cache(self) -> None:
        self._read(self._weights, dim=0, keepdim=True, out=self._sum)

    def around(self, launch: BoundLaunch) -> Replay:
        """Captures a launch between the small kernels."""
        return Replay(_captured(self._kernel, launch, self._kernel))

    def _kernel(self) -> None:
        self._row.add_(1.0)


class Stopwatch:
    """Times launches; holds the buffer that fills the L2 cache."""

    def __init__(self, mode: Mode, device: str = "cuda") -> None:
        """`device`: "cuda", or "npu" where torch_npu is installed."""
        import torch

        if device == "npu":
            importlib.import_module("torch_npu")  # makes torch.npu
        self.mode = mode
        self._torch = torch
        self._device: Any = getattr(torch, device)
        self._flush = torch.empty(FLUSH_BYTES[device], dtype=torch.int8, device=device)
        self._neighbours = _Neighbours(self._flush) if mode == "step" else None
        self._alone_us: deque[float] = deque(maxlen=_EMPTY_SAMPLES)

    def prepared(self, launch: BoundLaunch) -> BoundLaunch:
        """Returns what is timed: the launch itself, or the replay of a graph that it is captured
        in, which is a `Replay` in mode step.

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
        replay: BoundLaunch
        if self._neighbours is None:
            replay = _captured(launch).replay
        else:
            replay = self._neighbours.around(launch)
        replay()  # the first one uploads the graph
        return replay

    def once_us(self, launches: Sequence[BoundLaunch]) -> list[float]:
        """Returns one latency of each prepared launch in us, in their order, without a warm-up."""
        return [latency_us(self.mode, *each) for each in self.times_us(launches)]

    def rounds_us(self, launches: Sequence[BoundLaunch], rounds: int) -> list[list[float]]:
        """Returns the device times of each launch, in us, over interleaved rounds.

        Each round begins with another launch than the one before. So all launches see the same
        clocks and temperatures, and none is always first. The host's time is left out in all modes.
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
        if self._neighbours is None:
            return self._events_us(launches)
        count = 1 if self._alone_us else _EMPTY_SAMPLES
        found = self._events_us([self._neighbours.alone] * count + list(launches))
        self._alone_us.extend(device_us for device_us, _ in found[:count])
        alone_us = statistics.median(self._alone_us)
        return [
            (added_us(launch, device_us, alone_us), host_us)
            for launch, (device_us, host_us) in zip(launches, found[count:], strict=True)
        ]

    def _events_us(self, launches: Sequence[BoundLaunch]) -> list[tuple[float, float]]:
        event: Any = self._device.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in launches]
        host_us = []
        self._get_ahead()
        for launch, (start, end) in zip(launches, pairs, strict=True):
            self._fill_cache()
            start.record()
            begun = time.perf_counter()
            launch()
            host_us.append(1e6 * (time.perf_counter() - begun))
            end.record()
        self._device.synchronize()
        device_us = [1e3 * float(start.elapsed_time(end)) for start, end in pairs]
        return list(zip(device_us, host_us, strict=True))

    def _get_ahead(self) -> None:
        """Keeps the device busy with what stands between the events of a batch, too: the first
        replays after a pause differ from later ones."""
        for _ in range(_AHEAD):
            self._fill_cache()
            if self._neighbours is not None:
                self._neighbours.alone()

    def _fill_cache(self) -> None:
        if self._neighbours is None:
            self._flush.zero_()
        else:
            self._neighbours.fill_cache()


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


def added_us(launch: BoundLaunch, device_us: float, alone_us: float) -> float:
    """Returns what a prepared launch added to a time on the device, in us: a `Replay` ran with
    kernels that take `alone_us` without it, and others ran alone."""
    if not isinstance(launch, Replay):
        return device_us
    return max(device_us - alone_us, RESOLUTION_US)


def latency_us(mode: Mode, device_us: float, host_us: float) -> float:
    """The cost of a call in that mode, in us."""
    return max(device_us, host_us) if mode == "eager" else device_us


def _repeat(launch: BoundLaunch, times: int) -> None:
    for _ in range(times):
        launch()


def _captured(*launches: BoundLaunch) -> Any:
    """A CUDA graph of launches, one after the other."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    return graph
