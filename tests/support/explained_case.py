"""Configs of the kernel in Triton that explanations are of."""

from __future__ import annotations

from typing import Any

from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_triton")

CONFIG: dict[str, Any] = {
    "BLOCK_M": 128,
    "BLOCK_N": 128,
    "num_warps": 8,
    "num_stages": 2,
    "USE_TMA": 1,
    "maxnreg": 0,
    "L2_SECTION_HEADS": 1,
    "PACK_GQA": 0,
}


def asked(workload: str, chip: str) -> Case:
    return Case(KERNEL, Workload.parse(workload), Target.named(chip))
