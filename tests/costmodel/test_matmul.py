"""tunefa/costmodel/matmul.py: predicted times of matrix products."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tunefa.costmodel import matmul as model
from tunefa.costmodel.gpu import LAUNCH_US, Prediction
from tunefa.costmodel.roofline import roofline
from tunefa.spec import arch_catalog as archs
from tunefa.spec.matmul import Matmul
from tunefa.spec.target import Target
from tunefa.spec.tiling import MatmulTiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

SM80, SM90 = (archs.gpu(archs.load(name)) for name in ("sm80", "sm90"))
ASKED = Matmul(m=4096, n=4096, k=4096)
TILING = MatmulTiling(
    block_m=128, block_n=256, block_k=64, warps=8, stages=3, copied_by_threads=False,
    max_registers=255, group_m=8,
)  # fmt: skip
RESOURCES = Resources(147480, 158, 0, 0)
TIMES_US = [199.806, 43.0459, 545.894]


def predict(asked: Matmul = ASKED, **changes: Any) -> Prediction:
    tiling = replace(TILING, **changes)
    return model.predict(asked, SM90, SM90.device(), tiling, RESOURCES)


def test_cycles_of_a_step_by_hand() -> None:
    pipes = predict().cycles_per_step
    assert pipes["tensor"] == 2 * 128 * 256 * 64 / 4096
    assert pipes["smem"] == (16384 * 2 + 32768 * 3) / 128
    assert pipes["issue"] == pipes["spills"] == 0
    copied = predict(copied_by_threads=True).cycles_per_step
    assert copied["issue"] == 8 * (16384 + 32768) / 16 / 128


def test_fp32_is_multiplied_once_in_tf32() -> None:
    ratio = predict(replace(ASKED, dtype="fp32")).cycles_per_step["tensor"] / 1024
    rates = SM90.tensor_flops_per_clock_per_sm
    assert ratio == rates["bf16"] / rates["tf32"]


def test_mma_sync_is_slower_than_wgmma() -> None:
    few = predict(warps=2).cycles_per_step["tensor"]
    assert few == pytest.approx(1024 / model.MMA_SYNC_RATE_ON_HOPPER)


def test_warps_share_the_tile_as_squares() -> None:
    assert model.warp_grid(TILING) == (2, 4)
    assert model.warp_grid(replace(TILING, block_m=256, block_n=64, warps=4)) == (4, 1)


def test_one_warp_uses_a_quarter_of_the_tensor_cores() -> None:
    asked, tiling = replace(ASKED, dtype="fp32"), replace(TILING, block_m=64, block_n=64)
    needed = Resources(65536, 255, 0, 0)
    one, four = (
        model.predict(asked, SM80, SM80.device(), replace(tiling, warps=warps), needed)
        for warps in (1, 4)
    )
    assert one.compute_us > 1.5 * four.compute_us


def test_what_does_not_fit_has_no_time() -> None:
    made = model.predict(ASKED, SM90, SM90.device(), TILING, Resources(300000, 158, 0, 0))
    assert math.isinf(made.time_us) and made.limiter == "occupancy"


@pytest.mark.parametrize("size", [1024, 2048, 4096, 8192])
@pytest.mark.parametrize("chip", ["sm80", "sm90"])
def test_no_time_is_below_the_roofline(chip: str, size: int) -> None:
    arch = archs.gpu(archs.load(chip))
    asked = Matmul(m=size, n=size, k=size)
    least = roofline(Workload.parse(str(asked)), Target.named(chip)).least_us
    for block in (32, 64, 128):
        tiling = replace(TILING, block_m=block, block_n=block, warps=4)
        made = model.predict(asked, arch, arch.device(), tiling, Resources(32768, 128, 0, 0))
        assert made.time_us - LAUNCH_US >= least * 0.999


def test_larger_tiles_and_groups_read_less() -> None:
    assert predict(block_n=128).l2_us > predict().l2_us
    large = Matmul(m=16384, n=16384, k=16384)
    assert predict(large, group_m=1).hbm_us > predict(large, group_m=8).hbm_us
    small = Matmul(m=1024, n=1024, k=1024)  # stays in the L2 cache
    assert predict(small, group_m=1).hbm_us == predict(small, group_m=8).hbm_us


def test_more_work_takes_longer() -> None:
    for more in (replace(ASKED, m=8192), replace(ASKED, n=8192), replace(ASKED, k=8192)):
        assert predict(more).time_us > predict().time_us
    spilled = model.predict(ASKED, SM90, SM90.device(), TILING, replace(RESOURCES, spill_bytes=256))
    assert spilled.compute_us > predict().compute_us


def test_expected_resources_are_near_the_compilers() -> None:
    made = model.expected_resources(ASKED, SM90, TILING, 147456, 128)
    assert made.registers is not None and abs(made.registers - 158) < 20 and not made.spill_bytes
    tight = replace(TILING, max_registers=64)
    assert (model.expected_resources(ASKED, SM90, tight, 0, 128).spill_bytes or 0) > 0


def test_predictions_do_not_change_unnoticed() -> None:
    """`tunefa.costmodel.gpu.VERSION` needs a new number where they change, see `version`."""
    found = [
        predict().time_us,
        predict(Matmul(m=1024, n=2048, k=2048, dtype="fp32")).time_us,
        model.predict(ASKED, SM80, SM80.device(), replace(TILING, block_n=128), RESOURCES).time_us,
    ]
    assert found == pytest.approx(TIMES_US, rel=1e-3)
