"""Journals of several workloads for tests: which config took how long for which."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.fake_objective import KERNEL
from tests.support.sample_journals import written
from tests.support.sample_landscapes import CONFIGS, trial
from tunefa.spec.trial import Trial

WORKLOADS = ("fwd_q1024_h8_kv2_d64", "fwd_q2048_h8_kv2_d64", "fwd_q4096_h8_kv2_d64")
TIMES: Mapping[str, Mapping[int, float | None]] = {
    WORKLOADS[0]: {0: 100.0, 1: 101.5, 2: 104.0},
    WORKLOADS[1]: {0: 230.0, 1: 200.0, 2: 203.0},
    WORKLOADS[2]: {0: None, 2: 400.0, 3: 412.0},
}
"""By workload, the time of each config by its place in CONFIGS; None for one that failed.

Within 2 %, config 1 serves the first two and config 2 the last two. Config 1 was not tried for the
third workload, and config 3 for the others.
"""


def journal(
    workload: str, times: Mapping[int, float | None], hour: int = 12, **header: Any
) -> Path:
    """A journal of one workload, begun at that hour."""
    trials = [
        Trial(CONFIGS[place], "wrong", "no") if time is None else trial(CONFIGS[place], time)
        for place, time in times.items()
    ]
    said = {"kernel": KERNEL.name, "workload": workload, "mode": "eager", **header}
    return written(f"20260131T{hour}0000", *trials, **said)


def journals() -> list[Path]:
    """A journal for each workload."""
    return [journal(workload, times) for workload, times in TIMES.items()]
