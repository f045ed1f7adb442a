"""Trials whose predicted times are equal, near each other, or far apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support.canned_search import CONFIG
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.trial import Resources, Trial
from tunefa.spec.workload import Workload

DEFAULT = kernels.load("attention_fwd_triton").default(
    Workload.parse("q4096"), Target.named("sm90").arch
)


def trial(us: float, spill_bytes: int = 0, smem_bytes: int = 98336, **changes: Any) -> Trial:
    """A trial of CONFIG with some changes, whose predicted time is `us`."""
    resources = Resources(smem_bytes, 168, spill_bytes, 0)
    return Trial(
        {**CONFIG, **changes}, "ok", resources=resources, predicted_us=us, predicted_sd=0.1
    )


NEAR = [
    trial(300.0),
    trial(300.0, L2_SECTION_HEADS=4),
    trial(301.0, L2_SECTION_HEADS=16, smem_bytes=131072),
    trial(480.0, num_stages=3),
    replace(trial(700.0), config=DEFAULT),
]
"""The model cannot tell the first three apart; the last is the default."""
