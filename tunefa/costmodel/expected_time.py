"""How long a config is expected to take, before any compiler has seen it."""

from __future__ import annotations

from tunefa.costmodel import gpu as gpu_model
from tunefa.costmodel import npu as npu_model
from tunefa.spec.arch import NpuArch
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Case
from tunefa.spec.trial import Config


def expected_us(case: Case, config: Config) -> float:
    """The cost model's time, from the space's lower bounds; infinite if the config cannot run."""
    if isinstance(case.arch, NpuArch):
        return npu_model.time_us(case.workload, case.device, case.npu_tiling(config))
    arch = gpu(case.arch)
    tiling, estimate = case.tiling_and_estimate(config)
    smem_bytes, registers = int(estimate.get("smem_bytes", 0)), int(estimate.get("registers", 0))
    resources = gpu_model.expected_resources(arch, tiling, smem_bytes, registers)
    return gpu_model.predict(case.workload, arch, case.device, tiling, resources).time_us
