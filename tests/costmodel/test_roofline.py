"""tunefa/costmodel/roofline.py: its bounds against arithmetic by hand, and against predictions."""

from __future__ import annotations

import pytest

from tunefa.costmodel.estimate import expected_us
from tunefa.costmodel.roofline import EXP2, HBM, TENSOR, impossible_us, kv_bytes, roofline
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload
from tunefa.store.record import Record
from tunefa.store.results import Store, shipped_root

H100 = Target.named("h100")


def shipped_measured() -> list[Record]:
    """The measured records that come with tunefa."""
    found = Store([shipped_root()]).records()
    return [record for record in found if record.objective == "measured"]


@pytest.mark.parametrize(
    ("workload", "bound", "us"),
    [
        # 4 x 32 heads x 128 columns x about 8,192^2 / 2 pairs, at 989 TFLOP/s
        ("q8192", TENSOR, 4 * 32 * 128 * (8192 * 8193 / 2) / 989.4e6),
        # as many pairs with 16 columns: 32 x 8,192^2 / 2 exponentials at 132 x 16 x 1,830 MHz
        ("q8192_d16", EXP2, 32 * (8192 * 8193 / 2) / (132 * 16 * 1830)),
        # 32 MiB of K and V, and 16.1 KiB more, at 3.35 TB/s
        ("q1_k8k_h32_kv8", HBM, (2 * 8 * 8192 * 128 * 2 + 2 * 32 * 128 * 2 + 4 * 32) / 3.35e6),
    ],
)
def test_the_largest_bound_counts(workload: str, bound: str, us: float) -> None:
    found = roofline(Workload.parse(workload), H100)
    assert found.bound_by == bound and set(found.bounds_us) == {TENSOR, EXP2, HBM}
    assert found.least_us == pytest.approx(us, rel=1e-3)


def test_fp32_takes_three_products_and_an_npu_has_no_exp2_units() -> None:
    exact, half = (roofline(Workload.parse(f"q4k_{d}"), H100) for d in ("fp32", "bf16"))
    assert exact.bounds_us[TENSOR] == pytest.approx(6 * half.bounds_us[TENSOR])
    assert set(roofline(Workload.parse("q4k"), Target.named("910B3")).bounds_us) == {TENSOR, HBM}


@pytest.mark.parametrize(
    ("workload", "bound"),
    [
        ("q8192", TENSOR),
        ("q8192_d16", TENSOR),  # FlashAttention-4 computes exponentials by products and sums
        ("b1_h8_q1024_k32768_d64_causal_w1024", TENSOR),  # hides most of the keys that are counted
        ("decode_b16_h32_kv8_q1_k8192_d128_bf16_causal", HBM),
        ("decode_b16_h32_kv8_q1_k8192_d128_bf16_causal_w1024", HBM),
    ],
)
def test_what_no_launch_can_be_below(workload: str, bound: str) -> None:
    asked = Workload.parse(workload)
    assert impossible_us(asked, H100) == roofline(asked, H100).bounds_us[bound]
    other = Target.seen("NVIDIA H1000", (9, 0), 132)
    assert not other.is_known_product and impossible_us(asked, other) == 0.0


@pytest.mark.parametrize("record", shipped_measured(), ids=lambda record: str(record.workload))
def test_no_measured_record_is_impossible(record: Record) -> None:
    assert record.device
    target = Target.named(record.device)
    assert 0.0 < impossible_us(record.workload, target) < record.median_us


def test_k_and_v_of_packed_sequences_are_counted_by_their_lengths() -> None:
    dense = Workload.parse("b4_h8_kv2_q1_k1k_d64_full")
    assert kv_bytes(dense) == 4 * 2 * 1024 * (64 + 64) * 2
    packed = Workload.parse("b4_h8_kv2_q1_k1k_d64_full_varlen")
    assert kv_bytes(packed) == 2 * (256 + 512 + 768 + 1024) * (64 + 64) * 2


@pytest.mark.parametrize("workload", ["q8192", "b4_q1k_d64_full", "b8_q1_k8k", "q4k_softcap"])
@pytest.mark.parametrize("kernel", ["attention_fwd_triton", "attention_fwd_gluon_sm90"])
def test_no_prediction_is_better_than_the_chip(workload: str, kernel: str) -> None:
    case = Case.from_names(kernel, workload, "sm90")
    assert expected_us(case, case.default()) > roofline(case.workload, case.target).least_us
