"""Anchors from a few records of sm90's kernels."""

from __future__ import annotations

from typing import Any

from tests.support.sample_records import measured
from tunefa.costmodel.anchor import Anchor
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import lookup
from tunefa.store.record import Record

H200 = Target.named("h200")
CUDA, GLUON = "attention_fwd_cuda_sm90", "attention_fwd_gluon_sm90"
TRITON = "attention_fwd_triton"
LONG = "b4_h16_q4096_d128_full"


def record(kernel: str, text: str = LONG, median_us: float = 732.0, **changes: Any) -> Record:
    """The kernel's default for the workload, with changes."""
    config = {**kernels.load(kernel).default(Workload.parse(text), H200.arch), **changes}
    return measured(text, kernel=kernel, config=config, median_us=median_us)


def anchor(*records: Record, text: str = LONG, target: Target = H200) -> Anchor:
    """The anchor of these records and the measured defaults for a workload."""
    workload = Workload.parse(text)
    serving = kernels.serving(workload, target.arch)
    return Anchor.of(lookup.by_trust(records, workload, target), workload, target, serving)
