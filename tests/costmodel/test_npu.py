"""tunefa/costmodel/npu.py: the latency model, and the steps that it counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tunefa.costmodel import npu as npu_model
from tunefa.spec import arch_catalog as archs
from tunefa.spec.tiling import NpuTiling
from tunefa.spec.workload import Workload

B3 = archs.load("ascend910b3").device()
FULL = Workload.parse("h8_b4_q2048_d64_fp16_full")


def tiling(block_m: int, block_n: int, multibuffer: bool = True) -> NpuTiling:
    return NpuTiling(block_m, block_n, multibuffer, 0, 0, 0)


@pytest.mark.parametrize(
    ("block_m", "block_n", "head_dim", "step_us"),
    [(16, 32, 64, 3.49), (128, 64, 64, 3.53), (128, 128, 64, 3.96), (128, 256, 128, 6.17)],
)
def test_a_step_is_waiting_until_its_tile_is_large(
    block_m: int, block_n: int, head_dim: int, step_us: float
) -> None:
    """The model by hand: 1.31 + 1.44e-4 * 128 * 256 + 8.7e-6 * 128 * 128 = 6.17 and so on."""
    workload = replace(FULL, head_dim=head_dim, head_dim_v=head_dim)
    found = npu_model.step_us(workload, B3, tiling(block_m, block_n))
    assert found == pytest.approx(step_us, abs=0.01)


def test_without_multibuffer_a_step_waits_for_its_keys_and_values() -> None:
    alone, hidden = (npu_model.step_us(FULL, B3, tiling(64, 128, each)) for each in (False, True))
    assert alone - hidden == pytest.approx(2 * (128 * 64 * 2 / 120 + 520) / 1800)


def test_a_faster_clock_takes_less() -> None:
    b1 = archs.load("ascend910b1").device()
    ratio = npu_model.step_us(FULL, b1, tiling(64, 64)) / npu_model.step_us(
        FULL, B3, tiling(64, 64)
    )
    assert ratio == pytest.approx(1800 / b1.boost_mhz)


def counted(workload: Workload, cores: int, block_m: int, block_n: int) -> int:
    """Steps of the busiest core, tile by tile as the kernel walks over them."""
    of_core = [0] * cores
    tile = 0
    for _ in range(workload.batch * workload.heads):
        for first in range(0, workload.seqlen_q, block_m):
            end = workload.seqlen_k
            if workload.causal:
                end = min(end, first + block_m + workload.seqlen_k - workload.seqlen_q)
            of_core[tile % cores] += len(range(0, end, block_n))
            tile += 1
    return max(of_core)


@pytest.mark.parametrize(
    "text",
    ["h4_q300_d64_bf16_full", "h3_b2_q257_k700_d64_bf16_causal", "h1_q64_k64_d64_bf16_causal"],
)
@pytest.mark.parametrize("cores", [1, 7, 20])
def test_the_busiest_core_is_counted(text: str, cores: int) -> None:
    workload = Workload.parse(text)
    for block_m, block_n in ((64, 64), (48, 96), (256, 32)):
        found = npu_model.steps(workload, cores, block_m, block_n)
        assert found == counted(workload, cores, block_m, block_n)


def test_a_time_is_steps_times_the_step() -> None:
    found = npu_model.time_us(FULL, B3, tiling(64, 128))
    assert found == pytest.approx(
        npu_model.steps(FULL, 20, 64, 128) * npu_model.step_us(FULL, B3, tiling(64, 128))
    )
