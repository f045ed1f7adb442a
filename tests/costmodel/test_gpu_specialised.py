"""tunefa/costmodel/gpu.py on kernels that specialise their warps, and on others as ever."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tunefa.costmodel import gpu as model
from tunefa.costmodel.gpu import Prediction
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.tiling import Tiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

SM90 = archs.gpu(archs.load("sm90"))
H200 = SM90.device("NVIDIA H200")
GLUON = kernels.load("attention_fwd_gluon_sm90")
TRITON = kernels.load("attention_fwd_triton")
WORKLOAD = Workload.parse("b4_h16_q4096_d128_full")


def tiled(workload: Workload = WORKLOAD, **changes: Any) -> Tiling:
    """Returns the tiling of the default config, changed."""
    return GLUON.space.tiling({**GLUON.default(workload, SM90), **changes}, workload, SM90)


def predict(workload: Workload = WORKLOAD, **changes: Any) -> Prediction:
    config = {**GLUON.default(workload, SM90), **changes}
    estimate = GLUON.space.estimate(config, workload, SM90)
    smem_bytes, registers = int(estimate["smem_bytes"]), int(estimate["registers"])
    tiling = tiled(workload, **changes)
    resources = model.expected_resources(SM90, tiling, smem_bytes, registers)
    assert resources == Resources(smem_bytes, registers, 0)
    return model.predict(workload, SM90, H200, tiling, resources)


# (workload, changes to the default, TFLOP/s on an H200): batch * seqlen 16,384, heads * head_dim
# 2,048.
MEASURED = [
    ("b32_h16_q512_d128_full", {}, 572),
    ("b4_h16_q4096_d128_full", {}, 728),
    ("b32_h16_q512_d128_causal", {}, 368),
    ("b4_h16_q4096_d128_causal", {}, 671),
    ("b4_h16_q4096_d128_causal", {"SPLIT_DIAGONAL_BLOCK": 0}, 656),
    ("b32_h32_q512_d64_full", {}, 433),
    ("b1_h32_q16384_d64_full", {}, 543),
    ("b8_h32_q2048_d64_causal", {}, 451),
    ("b4_h8_q4096_d256_full", {}, 769),
    ("b32_h8_q512_d256_causal", {}, 363),
]


@pytest.mark.parametrize(("text", "changes", "tflops"), MEASURED)
def test_it_is_near_what_an_h200_does(text: str, changes: dict[str, Any], tflops: float) -> None:
    workload = Workload.parse(text)
    predicted = workload.flops / predict(workload, **changes).time_us / 1e6
    assert predicted == pytest.approx(tflops, rel=0.2)


def test_a_step_takes_the_longer_of_products_and_softmax() -> None:
    made = predict()
    pipes = made.cycles_per_step
    scores = 128 * 128
    softmax = scores / 16 + (model.SLOTS_PER_SCORE * scores + 128 * 128) / 128
    assert pipes["tensor"] == 2 * scores * 256 / 4096 and softmax > pipes["tensor"]
    # Two streams of one half each: alone, and held up by the other at the busiest pipe.
    cycles = softmax / 2 + model.STEP_LATENCY + pipes["tensor"] / 2
    # 2,048 tiles on 132 SMs: 16 on the busiest, each of 32 steps and one to fill the pipeline.
    steps = 16 * (4096 / 128 + 1 + model.LOAD_LATENCY / cycles)
    assert made.steps == pytest.approx(steps)
    assert made.compute_us == pytest.approx(steps * cycles / H200.boost_mhz)


def test_one_program_stays_on_an_sm() -> None:
    small = predict(WARPGROUPS=1, BLOCK_N=64, EPILOGUE_SUBTILE=1, num_stages=2, Q_STAGES=1)
    assert small.occupancy.blocks_per_sm == 1 and small.occupancy.limiter == "grid"
    assert min(v for k, v in small.occupancy.limits.items() if k != "grid") > 1
    assert tiled(WARPGROUPS=1).threads == 256 and tiled(WARPGROUPS=3).threads == 512


def test_what_is_skipped_at_the_diagonal_counts() -> None:
    causal = replace(WORKLOAD, causal=True)
    assert (
        predict(causal, SPLIT_DIAGONAL_BLOCK=1).time_us
        < predict(causal, SPLIT_DIAGONAL_BLOCK=0).time_us
    )
    assert tiled(causal, SPLIT_DIAGONAL_BLOCK=1).diagonal_n == 64


def test_a_head_is_not_padded_to_a_power_of_two() -> None:
    odd = replace(WORKLOAD, head_dim=192, head_dim_v=128)
    assert (tiled(odd).columns, tiled(odd).columns_v) == (192, 128)


def test_sections_are_heads_that_fill_so_much_memory() -> None:
    causal = replace(WORKLOAD, causal=True)  # 2 MiB of K and V a head
    assert [tiled(causal, L2_SECTION_MB=each).l2_section_heads for each in (4, 8, 32)] == [2, 4, 16]
    assert tiled().l2_section_heads == 1, "without a mask one head comes after the other"


def test_a_window_leaves_out_most_of_a_long_row() -> None:
    for seqlen in (4096, 16384):
        causal = replace(WORKLOAD, causal=True, seqlen_q=seqlen, seqlen_k=seqlen)
        short = replace(causal, window_left=511)
        assert predict(short).time_us < predict(causal).time_us / 2
    assert math.isfinite(predict(replace(WORKLOAD, causal=True, window_left=0)).time_us)


def test_a_window_of_two_sides_costs_what_its_keys_do() -> None:
    both = replace(WORKLOAD, causal=False, window_left=511, window_right=511)
    causal = replace(WORKLOAD, causal=True, window_left=1022)  # as many keys
    assert predict(both).time_us == pytest.approx(predict(causal).time_us, rel=0.1)
    one_side = replace(WORKLOAD, causal=False, window_right=512)
    assert predict(both).time_us < predict(one_side).time_us < predict(WORKLOAD).time_us


def test_heads_that_share_a_tile_read_keys_once() -> None:
    decode = Workload.parse("b64_h64_kv8_q1_k8192_d128")
    assert [tiled(decode, PACK_GQA=each).packed_heads for each in (1, 4, 8)] == [1, 4, 8]
    alone, packed = predict(decode, PACK_GQA=1), predict(decode, PACK_GQA=8)
    assert packed.steps < alone.steps / 7 and packed.time_us < alone.time_us / 4


def test_a_soft_cap_costs_another_exponential() -> None:
    plain, capped = predict(WORKLOAD), predict(replace(WORKLOAD, softcap=True))
    assert capped.cycles_per_step["exp2"] == 2 * plain.cycles_per_step["exp2"]
    assert capped.time_us > plain.time_us


# What the model said when it read the parameters of the Triton kernel by name.
BEFORE = [
    ("sm90", "b1_h32_kv8_q8192_d128_bf16_causal", {}, 1077.360655737705),
    (
        "sm90",
        "b1_h32_kv8_q8192_d128_bf16_causal",
        {"PACK_GQA": 1, "USE_TMA": 0},
        1080.1366129921137,
    ),
    ("sm80", "b4_h8_q4096_d256_bf16_full", {}, 2785.1390070921984),
    ("sm120", "b2_h4_kv2_q77_d72_fp16_full", {}, 10.657111203434429),
    ("sm100", "b1_h8_q300_k5000_d80_dv40_fp32_causal", {}, 111.87941658914617),
]


@pytest.mark.parametrize(("arch", "text", "changes", "time_us"), BEFORE)
def test_kernels_without_specialised_warps_are_as_before(
    arch: str, text: str, changes: dict[str, Any], time_us: float
) -> None:
    chip, workload = archs.gpu(archs.load(arch)), Workload.parse(text)
    config = {**TRITON.default(workload, chip), **changes}
    tiling = TRITON.space.tiling(config, workload, chip)
    made = model.predict(workload, chip, chip.device(), tiling, Resources(40000, 128, 40, 0))
    assert made.time_us == time_us
