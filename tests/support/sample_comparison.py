"""A document of `tunefa bench compare`, for tests of what is shown of it. No figure is measured."""

from __future__ import annotations

from tunefa.experiments.document import MEASURED, Document, Row
from tunefa.measure.contest import Contest, Score
from tunefa.spec.workload import Workload

WORKLOAD = Workload.parse("b1_h1_q10000_d100_full")
"""4e10 FLOPs; 8.04e6 bytes."""


def row(workload: Workload = WORKLOAD, **times_us: float) -> Row:
    """Returns a row in which the contestants have these times, with quartiles 1 % around them."""
    scores = {
        name: Score((0.98 * us, 0.99 * us, us, 1.01 * us, 1.02 * us), 2.2e-3, 1.4e-2, name != "fa4")
        for name, us in times_us.items()
    }
    left_out = dict.fromkeys(["cudnn", "efficient"], "it has no soft-cap")
    device = {"watched": True, "sm_mhz": [1605, 1980], "power_w": [700, 700], "disturbance": None}
    return {
        **Contest(workload, "graph", scores, left_out, device).to_data(),
        "ran": {"kernel": "k", "config": {"BLOCK_N": 64}, "why": "the default"},
        "ceilings": {"matmul_tflops": 500.0, "copy_gb_per_s": 4000.0, "dtype": "bf16"},
    }


def document(*rows: Row) -> Document:
    """Returns a document with these rows, or with one."""
    return Document(
        experiment="compare",
        source=MEASURED,
        arch="sm90",
        device="NVIDIA H200",
        rows=list(rows) or [row(tunefa=100.0, sdpa=200.0, fa4=160.0)],
        made_with={"torch": "2.11"},
        settings={"absent": {"fa3": "fa3-fwd is not installed: pip install fa3-fwd"}},
        date="2026-11-22",
    )
