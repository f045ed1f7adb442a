"""tunefa/costmodel/estimate.py: the model of a case's chip, given what its space says."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tunefa.costmodel import gpu, npu
from tunefa.costmodel.estimate import expected_us
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

CASE = Case.from_names("attention_fwd_triton", "q4096_d128", "h200")
NPU = Case.from_names("attention_fwd_ascend", "q4096_d128_fp16", "ascend910b3")


@pytest.mark.parametrize("changes", [{}, {"num_stages": 4}, {"BLOCK_N": 32}])
def test_a_gpu_s_time_is_the_model_s_with_the_space_s_bounds(changes: dict[str, Any]) -> None:
    config = {**CASE.default(), **changes}
    arch, tiling, bounds = archs.gpu(CASE.arch), CASE.tiling(config), CASE.estimate(config)
    resources = gpu.expected_resources(
        arch, tiling, int(bounds["smem_bytes"]), int(bounds.get("registers", 0))
    )
    right = gpu.predict(CASE.workload, arch, CASE.device, tiling, resources).time_us
    assert expected_us(CASE, config) == right > 0


def test_what_cannot_run_takes_for_ever() -> None:
    config = {**CASE.default(), "BLOCK_M": 256, "BLOCK_N": 256, "num_stages": 5}
    assert math.isinf(expected_us(CASE, config))


def test_an_npu_s_time_is_the_other_model_s() -> None:
    default = NPU.default()
    right = npu.time_us(NPU.workload, NPU.device, NPU.npu_tiling(default))
    assert expected_us(NPU, default) == right > 0


def test_the_product_and_the_workload_count() -> None:
    default = CASE.default()
    pcie = replace(CASE, target=Target.named("h100 pcie"))
    longer = replace(CASE, workload=Workload.parse("q8192_d128"))
    assert expected_us(pcie, default) > expected_us(CASE, default)
    assert expected_us(longer, default) > 3 * expected_us(CASE, default)
