"""Times a launch on the current CUDA device: events around it, cold L2, one sample a launch.

A launch that finds its inputs in the L2 cache is timed under conditions no model offers, so
the cache is overwritten before each. The work that does it also keeps the queue full: what is
timed is the kernel, not the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

FLUSH_BYTES = 256 * 2**20
"""More than the largest L2 (B200: 126 MB) twice."""
_WARMUP = 2


class Stopwatch:
    """Holds the buffer that evicts the L2 cache."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")

    def samples_us(self, launch: Callable[[], Any], count: int) -> list[float]:
        """Latencies of `count` launches in us, after two that warm up."""
        for _ in range(_WARMUP):
            launch()
        return self._time([launch] * count)

    def once_us(self, launches: Sequence[Callable[[], Any]]) -> list[float]:
        """One latency of each launch in us, in their order; nothing warms up."""
        return self._time(launches)

    def rounds_us(self, launches: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
        """Latencies of each launch over interleaved rounds, each round beginning one further on.

        All candidates see the same clocks and temperatures; none is always first.
        """
        for launch in launches:
            launch()
        samples: list[list[float]] = [[] for _ in launches]
        for round_ in range(rounds):
            order = [(round_ + i) % len(launches) for i in range(len(launches))]
            for index, time_us in zip(order, self._time([launches[i] for i in order]), strict=True):
                samples[index].append(time_us)
        return samples

    def _time(self, launches: Sequence[Callable[[], Any]]) -> list[float]:
        event: Any = self._torch.cuda.Event
        pairs = [(event(enable_timing=True), event(enable_timing=True)) for _ in launches]
        for launch, (start, end) in zip(launches, pairs, strict=True):
            self._flush.zero_()
            start.record()
            launch()
            end.record()
        self._torch.cuda.synchronize()
        return [1e3 * float(start.elapsed_time(end)) for start, end in pairs]
