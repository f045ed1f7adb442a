"""tunefa/costmodel/backward.py: predicted times of attention's gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tunefa.costmodel import backward as model
from tunefa.costmodel.gpu import LAUNCH_US, Prediction
from tunefa.costmodel.roofline import roofline
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Target
from tunefa.spec.tiling import BackwardTiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

SM90 = archs.gpu(archs.load("sm90"))
H200 = SM90.device("h200")
ADDING = BackwardTiling(
    block_m=64, block_n=128, dq_block_m=0, dq_block_n=0, group_splits=1, columns=128,
    columns_v=128, warps=8, stages=2, copied_by_threads=False, max_registers=240,
    l2_section_heads=4, kv_in_registers=False, dq_parts=2, warp_specialised=True,
)  # fmt: skip
APART = replace(
    ADDING, dq_block_m=128, dq_block_n=64, dq_parts=1, max_registers=255, warp_specialised=False
)
NEEDED = Resources(200_000, 168, 0, 0)
FULL = Workload.parse("bwd_b4_h16_q4096_d128_full")
CAUSAL = replace(FULL, causal=True)
PROBED = {
    "b16_h32_q1024_d64_full": 424, "b16_h32_q1024_d64": 310,
    "b4_h32_q4096_d64_full": 560, "b4_h32_q4096_d64": 509,
    "b1_h32_q16384_d64_full": 599, "b1_h32_q16384_d64": 600,
    "b16_h16_q1024_d128_full": 481, "b16_h16_q1024_d128": 341,
    "b4_h16_q4096_d128_full": 627, "b4_h16_q4096_d128": 557,
    "b1_h16_q16384_d128_full": 672, "b1_h16_q16384_d128": 649,
}  # fmt: skip
"""TFLOP/s of a prototype on an H200, whose tiles are those below (docs/model.md)."""
TIMES_US = [2194.17, 1223.87, 3720.65, 1987.52, 12010.1]


def predict(
    workload: Workload = FULL, tiling: BackwardTiling = ADDING, needed: Resources = NEEDED
) -> Prediction:
    return model.predict(workload, SM90, H200, tiling, needed)


@pytest.mark.parametrize("text", PROBED)
def test_times_are_near_those_measured(text: str) -> None:
    """The stated error of the model of attention, 15 %; 11 % here at most."""
    workload, tiling = Workload.parse(f"bwd_{text}"), ADDING
    if workload.head_dim == 64:
        narrow: dict[str, Any] = {
            "columns": 64,
            "columns_v": 64,
            "stages": 3,
            "l2_section_heads": 8,
        }
        tiling = replace(ADDING, **narrow, kv_in_registers=True, dq_parts=1)
    tflops = workload.flops / predict(workload, tiling).time_us / 1e6
    assert tflops == pytest.approx(PROBED[text], rel=0.15)


def test_tiles_and_steps_by_hand() -> None:
    keys, queries = model.cut_of_keys(FULL, APART), model.cut_of_queries(FULL, APART)
    assert (keys.tiles, keys.steps_per_tile) == (4 * 16 * 4096 // 128, 4096 // 64)
    assert (queries.tiles, queries.steps_per_tile) == (4 * 16 * 4096 // 128, 4096 // 64)
    half = model.cut_of_keys(CAUSAL, ADDING)
    assert half.longest_tile == 64 and 32 < half.steps_per_tile < 35
    assert half.masked_steps_per_tile == 3


def test_tiles_of_keys_go_through_all_heads_of_their_group() -> None:
    grouped = replace(FULL, heads_kv=4)
    cut, plain = model.cut_of_keys(grouped, ADDING), model.cut_of_keys(FULL, ADDING)
    assert cut.tiles == plain.tiles / 4 and cut.steps_per_tile == 4 * plain.steps_per_tile
    assert model.cut_of_queries(grouped, APART) == model.cut_of_queries(FULL, APART)


def test_ctas_that_share_a_tile_of_keys_divide_its_heads() -> None:
    grouped = replace(FULL, heads_kv=4)
    shared, whole = (
        model.cut_of_keys(grouped, replace(ADDING, group_splits=splits)) for splits in (4, 1)
    )
    assert shared.tiles == 4 * whole.tiles and shared.longest_tile == whole.longest_tile / 4
    assert shared == model.cut_of_keys(FULL, ADDING)
    found, before = (
        model.beside(grouped, H200, replace(ADDING, group_splits=splits)) for splits in (4, 1)
    )
    keys = 4 * 4 * 4096
    added = 4 * keys * 256 * 4 + keys * 256 * 2
    assert found["after"] - before["after"] == pytest.approx(added / 4.8e6)


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("h8_kv1_q8192_d128", {1: 1744, 2: 909, 4: 547, 8: 570}),
        ("h64_kv8_q1024_d128", {1: 270, 2: 176, 4: 150, 8: 172}),
        ("h8_kv1_q8192_d128_full", {1: 1724, 2: 1001, 4: 1024, 8: 1035}),
        ("h32_kv8_q2048_d128_full", {1: 286, 2: 310, 4: 335}),
    ],
)
def test_few_tiles_are_shared(text: str, measured: dict[int, float]) -> None:
    """us on an H200. The model finds a split within 6 % of the fastest."""
    workload = Workload.parse(f"bwd_{text}")
    times = {
        splits: predict(workload, replace(ADDING, block_m=80, group_splits=splits)).time_us
        for splits in measured
    }
    chosen = min(times, key=lambda splits: times[splits])
    assert measured[chosen] <= 1.06 * min(measured.values())
    assert (times[1] > times[2]) == (measured[1] > measured[2])


def test_a_window_bounds_the_steps() -> None:
    windowed = replace(CAUSAL, window_left=511)
    cut = model.cut_of_keys(windowed, ADDING)
    assert cut.longest_tile == math.ceil((512 + 128) / 64) + 1
    assert 8 <= cut.steps_per_tile <= cut.longest_tile
    assert predict(windowed).time_us < predict(CAUSAL).time_us / 2


def test_launches_beside_the_main_one_move_their_bytes() -> None:
    rows, found = 4 * 16 * 4096, model.beside(FULL, H200, ADDING)
    before = rows * (2 * 128 * 2 + 3 * 4 + 128 * 4)
    assert found["before"] == pytest.approx(LAUNCH_US + before / 4.8e6)
    assert found["after"] == pytest.approx(LAUNCH_US + rows * 128 * 6 / 4.8e6)
    assert predict().beside_us == sum(found.values())
    assert list(model.beside(FULL, H200, APART)) == ["before"]
    first = replace(APART, warp_specialised=True)  # a launch of its own, which sums up the rows
    assert model.beside(FULL, H200, first) == {"before": LAUNCH_US}


def test_dq_that_is_added_in_memory_takes_bandwidth() -> None:
    assert predict().l2_us > 1.4 * predict(tiling=APART).l2_us
    streamed = 64 * 64 * 4096 / 128 * 64 * (256 * 2 + 2 * 4 * 128)
    assert predict().l2_us == pytest.approx(streamed / (4472 * 1830))


def test_what_does_not_fit_has_no_time() -> None:
    made = predict(needed=Resources(300_000, 168, 0, 0))
    assert math.isinf(made.time_us) and made.limiter == "occupancy"


@pytest.mark.parametrize("chip", ["sm80", "sm86", "sm90", "sm120"])
@pytest.mark.parametrize("text", ["q512_full", "b4_q4096", "q16384_d64_full", "q4096_d256"])
def test_no_time_is_below_the_roofline(chip: str, text: str) -> None:
    arch, workload = archs.gpu(archs.load(chip)), Workload.parse(f"bwd_{text}")
    least = roofline(workload, Target.named(chip)).least_us
    width: dict[str, Any] = {"columns": workload.head_dim, "columns_v": workload.head_dim}
    for tiling in (ADDING, APART, replace(APART, block_n=64, dq_block_m=64, warps=4)):
        made = model.predict(
            workload, arch, arch.device(), replace(tiling, **width), Resources(65536, 128, 0, 0)
        )
        assert made.time_us - LAUNCH_US >= least * 0.999


@pytest.mark.parametrize("tiling", [ADDING, APART], ids=["adding", "apart"])
def test_more_work_takes_longer(tiling: BackwardTiling) -> None:
    plain = predict(tiling=tiling).time_us
    longer: list[dict[str, Any]] = [{"batch": 8}, {"seqlen_q": 8192}, {"seqlen_k": 8192}]
    for more in longer:
        assert predict(replace(FULL, **more), tiling).time_us > 1.5 * plain
    capped = predict(replace(FULL, softcap=True), tiling).time_us
    assert capped == plain if tiling.warp_specialised else capped > plain  # it hides the softmax
    assert predict(tiling=tiling, needed=replace(NEEDED, spill_bytes=1024)).time_us > plain
    assert predict(CAUSAL, tiling).time_us < plain


def test_packed_sequences_take_the_time_of_their_dense_equivalent() -> None:
    packed = replace(CAUSAL, varlen=True)
    assert predict(packed) == predict(packed.dense_equivalent)


def test_expected_resources_grow_with_the_bounds() -> None:
    few, many = (model.expected_resources(SM90, APART, 65536, n) for n in (64, 128))
    assert (few.registers or 0) < (many.registers or 0) and few.smem_bytes == 65536
    tight = model.expected_resources(SM90, replace(APART, max_registers=96), 65536, 128)
    assert tight.registers == 96 and (tight.spill_bytes or 0) > 0
    own = model.expected_resources(SM90, ADDING, 65536, 168)
    assert own == Resources(65536, 168, 0), "the kernel sets its registers itself"


def test_predictions_do_not_change_unnoticed() -> None:
    """`tunefa.costmodel.gpu.VERSION` needs a new number where they change, see `version`."""
    sm80 = archs.gpu(archs.load("sm80"))
    copied = replace(APART, block_m=32, copied_by_threads=True)
    found = [
        predict().time_us,
        predict(CAUSAL).time_us,
        predict(tiling=APART).time_us,
        predict(CAUSAL, APART).time_us,
        model.predict(FULL, sm80, sm80.device(), copied, Resources(98304, 255, 32, 0)).time_us,
    ]
    assert found == pytest.approx(TIMES_US, rel=1e-3)
