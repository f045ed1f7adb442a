"""tunefa/costmodel/decode.py: predicted times of attention over a cache."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tunefa.costmodel import decode as model
from tunefa.costmodel import latency
from tunefa.costmodel.gpu import Prediction
from tunefa.costmodel.roofline import roofline
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Case, Target
from tunefa.spec.tiling import DecodeTiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

SM80, SM90 = (archs.gpu(archs.load(name)) for name in ("sm80", "sm90"))
H200 = SM90.device("h200")
TILING = DecodeTiling(
    block_m=16, block_n=64, columns=128, columns_v=128, warps=4, copying_warps=0, blocks_ahead=4,
    copied_by_threads=False, by_wgmma=False, max_registers=255, ctas_per_sm=1, min_split_keys=512,
    max_splits=128, heights=1, last_cta_combines=False,
)  # fmt: skip
NEEDED = Resources(65536, 128, 0, 0)
LARGE, LONG, SHORT = (
    Workload.parse(f"decode_{text}_d128_bf16")
    for text in ("b64_h32_kv8_k32k", "b1_h8_kv1_k128k", "b1_h8_kv1_k512")
)
TIMES_US = {3: [2059.483, 19.77392, 10.81913, 11.93825, 4760.652]}


def predict(workload: Workload, needed: Resources = NEEDED, **changes: Any) -> Prediction:
    return model.predict(workload, SM90, H200, replace(TILING, **changes), needed)


def test_large_caches_take_the_time_of_their_bytes() -> None:
    made = predict(LARGE, heights=3)
    cache, rows = 64 * 8 * 32768 * 2 * 128 * 2, 64 * 32
    moved = cache + rows * (2 * 128 * 2 + 4)
    assert made.limiter == "HBM"
    assert made.hbm_us == pytest.approx(moved / 4.8e6 / model.HBM_SHARE)
    assert made.hbm_us < made.time_us < 1.04 * made.hbm_us


def test_few_bytes_in_flight_leave_the_time_to_latency() -> None:
    """One CTA has one split of 512 keys, which are 8 blocks."""
    for on_their_way, copies in ((0.5, 16), (1, 8)):
        made = predict(SHORT, blocks_ahead=on_their_way)
        assert made.limiter == "latency"
        around = model.LAUNCH_US + model.SPLIT_US
        assert made.time_us == pytest.approx(copies * model.LATENCY_US + around)
    assert predict(SHORT, blocks_ahead=0).time_us > 500 * model.LATENCY_US, "a key at a time"


def test_more_splits_help_a_single_sequence() -> None:
    times = [predict(LONG, max_splits=most).time_us for most in (1, 8, 128)]
    assert times[0] > 6 * times[1] > 18 * times[2]
    assert predict(replace(LONG, seqlen_k=512)).time_us == predict(SHORT, max_splits=1).time_us


@pytest.mark.parametrize("text", ["b1_k8k", "b20_k8k", "b200_k2k"])
def test_splits_that_follow_the_batch_are_the_best_of_three_lengths(text: str) -> None:
    workload = Workload.parse(f"decode_{text}")
    fixed = [predict(workload, min_split_keys=keys).time_us for keys in (512, 1024, 2048)]
    assert len(set(fixed)) > 1
    assert predict(workload, heights=3).time_us == min(fixed)


def test_splits_are_combined_by_a_second_launch() -> None:
    assert predict(SHORT).beside_us == 0
    numbers = 8 * 128 * 128  # rows, splits, columns
    assert predict(LONG).beside_us == pytest.approx(model.COMBINE_US + 4 * numbers / 4.8e6)
    a100 = model.predict(LONG, SM80, SM80.device(), TILING, NEEDED)
    assert a100.beside_us > model.PLAIN_COMBINE_US > model.COMBINE_US


def test_the_last_cta_saves_a_launch_and_waits_for_what_it_reads() -> None:
    """16 splits of 8 rows: 4 warps have two rows each, in two trips each."""
    workload = Workload.parse("decode_b1_h8_kv1_k8k")
    last: dict[str, Any] = {"last_cta_combines": True}
    usual, made = predict(workload, max_splits=16), predict(workload, max_splits=16, **last)
    trips_us, saved_us = 4 * model.ROUND_TRIP_US, model.SECOND_LAUNCH_US
    assert made.beside_us == pytest.approx(model.ARRIVAL_US + trips_us - saved_us)
    apart = usual.beside_us - made.beside_us
    assert usual.time_us - made.time_us == pytest.approx(apart)
    assert predict(SHORT, **last).beside_us == -saved_us
    assert predict(SHORT).time_us - predict(SHORT, **last).time_us == pytest.approx(saved_us)


def test_the_last_cta_does_not_change_how_many_splits_there_are() -> None:
    """Three lengths keep all SMs at work, and the kernel takes the shortest."""
    workload = Workload.parse("decode_b1_h8_kv1_k64k")
    made = predict(workload, heights=3, last_cta_combines=True)
    trips_us, saved_us = 2 * 16 * model.ROUND_TRIP_US, model.SECOND_LAUNCH_US
    assert made.beside_us == pytest.approx(model.ARRIVAL_US + trips_us - saved_us)


MEASURED = {
    "b16_h32_kv8_k1024": (24.5, 24.0),
    "b128_h32_kv8_k1024": (176.1, 175.5),
    "b1_h32_kv8_k1024": (5.30, 5.19),
    "b1_h32_kv4_k1024": (4.51, 5.68),
    "b1_h32_kv8_k4096": (8.41, 9.26),
    "b1_h32_kv8_k32768": (46.4, 47.1),
    "b1_h32_kv4_k131072": (90.1, 95.3),
    "b16_h32_kv32_k16384": (1372, 1371),
}
"""us on an H100 with a second launch, and where the last CTA combines."""


@pytest.mark.parametrize("text", MEASURED)
def test_the_faster_form_is_the_one_that_was_measured_so(text: str) -> None:
    case = Case.from_names("attention_decode_cuda_sm90", f"decode_{text}_d128_bf16", "h100")
    resources = Resources(144272, 148, 0, 0)
    usual, last = (
        latency.of(case).predict(case, case.default() | {"LAST_CTA_COMBINES": each}, resources)
        for each in (0, 1)
    )
    second_us, last_us = MEASURED[text]
    assert (last.time_us < usual.time_us) is (last_us < second_us)
    assert last.time_us - usual.time_us == pytest.approx(last_us - second_us, abs=0.7)


def test_what_does_not_fit_has_no_time() -> None:
    made = predict(SHORT, Resources(300_000, 128, 0, 0))
    assert math.isinf(made.time_us) and made.limiter == "occupancy"


def test_sequences_of_several_lengths_count_as_their_mean() -> None:
    packed = Workload.parse("decode_b4_k4096_varlen")  # 1024, 2048, 3072 and 4096 keys
    assert predict(packed) == predict(Workload.parse("decode_b4_k2560"))
    windowed = replace(packed, window_left=2047)  # which the shortest one does not fill
    assert predict(windowed) == predict(Workload.parse("decode_b4_k2560_w2k"))


def test_keys_before_every_window_cost_nothing() -> None:
    near, far = (Workload.parse(f"decode_b8_k{keys}_w1k") for keys in ("4k", "64k"))
    assert predict(near) == predict(far)
    assert predict(near).time_us < predict(replace(near, window_left=None)).time_us


def test_ctas_of_an_sm_overlap_what_is_not_copied() -> None:
    """Four splits for each SM, at once or one after the other; 16 warps compute at full speed. A
    split has 64 blocks."""
    workload, needed = Workload.parse("decode_b66_kv8_k4096"), Resources(16384, 32, 0, 0)
    for ctas, warps, steps in ((4, 4, 64), (4, 8, 128), (1, 4, 256)):
        made = predict(workload, needed, max_splits=1, ctas_per_sm=ctas, warps=warps)
        assert made.limiter == "HBM" and made.steps == steps
        around = made.time_us - made.hbm_us - model.LAUNCH_US
        assert around == pytest.approx(model.SPLIT_US * (4 if ctas == 1 else 1 / 4))


def test_cycles_of_a_block_by_hand() -> None:
    assert model.cycles_of_block(SHORT, TILING) == 70 * 64 / 4 + 600
    half = replace(TILING, block_m=8, columns_v=64, columns=64)
    assert model.cycles_of_block(SHORT, half) == 70 * 64 / 4 / 4 + 600
    copied = replace(TILING, copied_by_threads=True)
    assert model.cycles_of_block(SHORT, copied) == (70 + 16) * 64 / 4 + 600


@pytest.mark.parametrize("chip", ["sm80", "sm86", "sm90", "sm120"])
@pytest.mark.parametrize("text", ["k512", "b64_k8k", "b4_q4_k64k_w4k", "b8_k4k_varlen"])
def test_no_time_is_below_the_roofline(chip: str, text: str) -> None:
    arch, workload = archs.gpu(archs.load(chip)), Workload.parse(f"decode_{text}")
    least = roofline(workload.dense_equivalent, Target.named(chip)).least_us
    for copied in (True, False):
        tiling = replace(TILING, copied_by_threads=copied, ctas_per_sm=8, blocks_ahead=8)
        made = model.predict(workload, arch, arch.device(), tiling, Resources(16384, 64, 0, 0))
        assert made.time_us - model.LAUNCH_US >= least


def test_more_work_takes_longer() -> None:
    longer: list[dict[str, Any]] = [
        {"batch": 128}, {"seqlen_k": 65536}, {"heads_kv": 16}, {"head_dim": 256}
    ]  # fmt: skip
    for more in longer:
        assert predict(replace(LARGE, **more)).time_us > 1.4 * predict(LARGE).time_us, more
    one = Workload.parse("decode_b33_h16_kv4_k8k")  # one CTA for each of 132 SMs
    assert predict(one, max_splits=1).steps == 8192 / 64
    assert predict(replace(one, seqlen_q=8), max_splits=1).steps == 2 * 8192 / 64, "two tiles"


def test_expected_resources_grow_with_the_bounds() -> None:
    few, many = (model.expected_resources(TILING, 65536, n) for n in (32, 64))
    assert (many.registers or 0) - (few.registers or 0) == 32
    assert few.smem_bytes == 65536 and not few.spill_bytes
    tight = model.expected_resources(replace(TILING, max_registers=96), 65536, 64)
    assert tight.registers == 96 and (tight.spill_bytes or 0) > 0


def test_predictions_do_not_change_unnoticed() -> None:
    """`tunefa.costmodel.decode.VERSION` needs a new number where they change: see `version`."""
    found = [
        predict(LARGE).time_us,
        predict(LONG).time_us,
        predict(SHORT).time_us,
        predict(SHORT, copied_by_threads=True, blocks_ahead=2).time_us,
        model.predict(LARGE, SM80, SM80.device(), TILING, NEEDED).time_us,
    ]
    assert found == pytest.approx(TIMES_US[model.VERSION], rel=1e-3)


def test_latent_attention_reads_each_row_once_and_multiplies_at_the_peak_rate() -> None:
    """With 16 heads the memory is the limit, with 128 the tensor cores."""
    tile = {"block_m": 64, "block_n": 128, "columns": 576, "columns_v": 512, "warps": 12,
            "blocks_ahead": 0.5, "by_wgmma": True, "max_registers": 168}  # fmt: skip
    needed = Resources(221808, 168, 0, 0)
    few, many = (Workload.parse(f"decode_b64_h{heads}_k8192_mla") for heads in (16, 128))
    memory, products = (predict(each, needed, **tile) for each in (few, many))
    cache = 64 * 8192 * 576 * 2
    moved = cache + 64 * 16 * ((576 + 512) * 2 + 4)
    assert memory.hbm_us == pytest.approx(moved / 4.8e6 / model.HBM_SHARE)
    assert memory.limiter == "HBM" and products.limiter == "warps"
    cycles = 2 * 64 * 128 * (576 + 512) / 4096 + model.STEP_CYCLES
    assert products.cycles_per_step["warps"] == pytest.approx(cycles)
    splits = 64 * 2 * 16
    rounds = -(-splits // H200.sms)
    assert products.compute_us == pytest.approx(rounds * 4 * cycles / H200.boost_mhz)
