"""The time that a config is expected to take, without compiling it."""

from __future__ import annotations

from tunefa.costmodel import gpu as gpu_model
from tunefa.costmodel import npu as npu_model
from tunefa.spec.arch import NpuArch
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Case
from tunefa.spec.trial import Config


def expected_us(case: Case, config: Config) -> float:
    """Returns the time of one launch in us, by the cost model for the case's arch.

    The resources are the lower bounds of the search space. Infinity means that the config cannot
    run.
    """
    if isinstance(case.arch, NpuArch):
        return npu_model.time_us(case.workload, case.device, case.npu_tiling(config))
    arch = gpu(case.arch)
    tiling, estimate = case.tiling_and_estimate(config)
    smem_bytes, registers = int(estimate.get("smem_bytes", 0)), int(estimate.get("registers", 0))
    resources = gpu_model.expected_resources(arch, tiling, smem_bytes, registers)
    return gpu_model.predict(case.workload, arch, case.device, tiling, resources).time_us
