"""The time that a config is expected to take, and how sure that is, without running it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tunefa.costmodel import gpu as gpu_model
from tunefa.costmodel import npu as npu_model
from tunefa.costmodel.ranking import MODEL_ERROR
from tunefa.spec.arch import NpuArch
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources


@dataclass(frozen=True)
class Estimate:
    """The time that one launch is expected to take."""

    time_us: float
    """Infinity means that the config cannot run."""
    sd: float
    """The standard deviation of log(measured time / `time_us`)."""
    comparison_sd: float
    """The standard deviation of the logarithm of the ratio of two configs' times on one workload:
    errors that both have in common cancel."""


def estimate(case: Case, config: Config, resources: Resources | None = None) -> Estimate:
    """Returns the time of one launch by the cost model for the case's arch.

    `resources` are the compiler's. Before compiling, None stands for the lower bounds of the search
    space.
    """
    if isinstance(case.arch, NpuArch):
        time_us = npu_model.time_us(case.workload, case.device, case.npu_tiling(config))
        return Estimate(time_us, 0.0, 0.0)
    arch = gpu(case.arch)
    tiling, lower = case.tiling_and_estimate(config)
    if resources is None:
        smem_bytes, registers = int(lower.get("smem_bytes", 0)), int(lower.get("registers", 0))
        resources = gpu_model.expected_resources(arch, tiling, smem_bytes, registers)
    time_us = gpu_model.predict(case.workload, arch, case.device, tiling, resources).time_us
    error = math.log1p(MODEL_ERROR)
    return Estimate(time_us, error, error)


def expected_us(case: Case, config: Config) -> float:
    """Returns the time of one launch in us, before compiling; infinity where it cannot run."""
    return estimate(case, config).time_us


def estimates(case: Case, configs: Sequence[Config]) -> list[Estimate]:
    """Returns the estimate of each config before it is compiled.

    The cost model is asked once for configs that differ only in parameters that it does not know.
    """
    known: dict[tuple[object, ...], Estimate] = {}
    seen = case.kernel.space.seen_by_cost_model
    keys = [tuple(config[name] for name in seen) for config in configs]
    for key, config in zip(keys, configs, strict=True):
        if key not in known:
            known[key] = estimate(case, config)
    return [known[key] for key in keys]
