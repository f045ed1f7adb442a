"""One small case on an H200 that objectives are tried on, and trials of its configs."""

from __future__ import annotations

from typing import Any

from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources, Trial
from tunefa.spec.workload import Workload

SM90 = archs.gpu(archs.load("sm90"))
TARGET = Target.named("h200")
KERNEL = kernels.load("attention_fwd_triton")
WORKLOAD = Workload.parse("h4_kv2_q96_k160_d32")
CASE = Case(KERNEL, WORKLOAD, TARGET)
CONFIG: dict[str, Any] = {
    "BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2,
    "USE_TMA": 0, "maxnreg": 0, "L2_SECTION_HEADS": 1, "PACK_GQA": 0,
}  # fmt: skip
FITS = Resources(smem_bytes=20480, registers=128, spill_bytes=0, stack_bytes=0)


def config(block_m: int) -> dict[str, Any]:
    """CONFIG with another BLOCK_M."""
    return {**CONFIG, "BLOCK_M": block_m}


def ok(block_m: int, time_us: float) -> Trial:
    """A trial that compiled, with the model's time."""
    return Trial(config(block_m), "ok", resources=FITS, predicted_us=time_us)
