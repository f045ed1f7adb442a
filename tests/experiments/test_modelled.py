"""The modelled times of attention in operators and of FlashAttention-2, by hand."""

from __future__ import annotations

import math

import pytest

from tunefa.costmodel import gpu
from tunefa.errors import TunefaError
from tunefa.experiments import modelled
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

H200 = Target.named("h200")
LONG = Workload.parse("b4_h32_q4096_d64_fp16_causal")


def test_the_bytes_of_the_operators_by_hand() -> None:
    scores = 4 * 32 * 4096 * 4096 * 2
    inputs = 2 * 4 * 32 * 4096 * 64 * 2  # Q and K, or P's output and V
    found = {each.name: each for each in modelled.operators(LONG)}
    assert found["Q K^T"].bytes == inputs + scores and found["P V"].bytes == inputs + scores
    assert found["softmax"].bytes == 2 * scores
    assert found["scale"].bytes == found["copy for the mask"].bytes == 2 * scores
    assert found["mask"].bytes == 2 * scores + 4096 * 4096
    products = found["Q K^T"].flops + found["P V"].flops
    assert products == 4 * 4 * 32 * 4096 * 4096 * 64, "all pairs, whatever the mask"


def test_their_time_is_that_of_the_memory_where_scores_are_long() -> None:
    moved = sum(each.bytes for each in modelled.operators(LONG))
    least_us = moved / H200.device.hbm_bytes_per_s * 1e6
    launches = 6 * gpu.LAUNCH_US
    assert modelled.operators_us(LONG, H200) == pytest.approx(least_us + launches, rel=1e-9)


def test_scores_that_the_l2_holds_need_not_come_from_hbm() -> None:
    short = Workload.parse("b1_h8_q1024_d64_fp16_full")  # 16 MiB of scores
    moved = sum(each.bytes for each in modelled.operators(short))
    hbm_us = moved / H200.device.hbm_bytes_per_s * 1e6
    assert modelled.operators_us(short, H200) - 4 * gpu.LAUNCH_US < hbm_us


def test_packed_sequences_have_no_matrix_of_scores() -> None:
    with pytest.raises(TunefaError, match="packed"):
        modelled.operators(Workload.parse("b4_h8_q1024_d64_full_varlen"))


@pytest.mark.parametrize(
    ("head_dim", "tile"), [(64, (128, 128, 4)), (96, (128, 64, 4)), (256, (128, 64, 8))]
)
def test_flash_attention_2_has_its_published_tiles(
    head_dim: int, tile: tuple[int, int, int]
) -> None:
    workload = Workload.parse(f"b4_h16_q4096_d{head_dim}_full")
    found, resources = modelled.flash_attention_2_tile(workload)
    assert (found.block_m, found.block_n, found.warps) == tile
    assert resources.smem_bytes == 2 * head_dim * (found.block_m + 2 * found.block_n)
    assert math.isfinite(modelled.flash_attention_2_us(workload, H200) or math.inf)


def test_tunefas_own_time_is_that_of_its_choice() -> None:
    found = modelled.ours(LONG, H200)
    assert found.choice.kernel.startswith("attention_fwd_") and 100 < found.time_us < 2000


def test_flash_attention_2_is_as_fast_as_it_was_measured() -> None:
    """Each workload of docs/benchmarks.md: TFLOP/s on an H200."""
    measured = {
        "b8_h32_q2048_d64_full": 297,
        "b4_h32_q4096_d64_causal": 279,
        "b4_h16_q4096_d128_causal": 306,
        "b2_h16_q8192_d128_full": 318,
        "b4_h8_q4096_d256_full": 324,
    }
    for text, tflops in measured.items():
        workload = Workload.parse(text)
        time_us = modelled.flash_attention_2_us(workload, H200)
        assert time_us is not None
        made = workload.flops / time_us / 1e6
        assert made == pytest.approx(tflops, rel=0.16), text
