"""The score of one contestant on one workload: its times and its errors."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from tunefa.spec.workload import Workload


@dataclass(frozen=True)
class Score:
    """The times and the errors of one contestant."""

    samples_us: tuple[float, ...]
    """One latency for each round."""
    error: float
    """||out - exact|| / ||exact|| over the heads that are compared."""
    worst_row: float
    """The largest such error of one row, which is one query of one head."""
    captured: bool
    """Whether a CUDA graph was replayed. If not, the samples are those of mode eager."""

    @property
    def median_us(self) -> float:
        """The median latency in us."""
        return statistics.median(self.samples_us)

    @property
    def spread(self) -> tuple[float, float]:
        """The first and the third quartile of the samples, in us."""
        if len(self.samples_us) < 2:
            return self.samples_us[0], self.samples_us[0]
        low, _, high = statistics.quantiles(self.samples_us, n=4, method="inclusive")
        return low, high

    def tflops(self, workload: Workload) -> float:
        """TFLOP/s of both matrix products, for the visible (query, key) pairs only."""
        return workload.flops / self.median_us / 1e6

    def gb_per_s(self, workload: Workload) -> float:
        """GB/s, where q, k, v, the output and the logsumexp are moved once."""
        return workload.io_bytes / self.median_us / 1e3

    @property
    def is_timed(self) -> bool:
        """Whether the samples are times: there is one, and all are positive and finite."""
        return bool(self.samples_us) and all(0 < us < math.inf for us in self.samples_us)
