"""tunefa/costmodel/roofline.py: its bounds against arithmetic by hand, and against predictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import point_files
from tests.support.tree import TREE
from tunefa.costmodel.estimate import expected_us
from tunefa.costmodel.roofline import EXP2, HBM, TENSOR, cache_us, kv_bytes, roofline
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

H100 = Target.named("h100")
CACHE_FIGURES = sorted((TREE / "docs" / "decode").glob("*.json"))


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


def test_a_cache_is_read_once() -> None:
    """16 x 8,192 keys of 8 heads, 128 columns of K and of V, 2 bytes each; then queries, output and
    logsumexp; at 4.8 TB/s of an H200."""
    many = Workload.parse("decode_b16_h32_kv8_q1_k8192_d128_bf16_causal")
    read = 16 * 8192 * 8 * 2 * 128 * 2 + 16 * 32 * (2 * 128 * 2 + 4)
    assert cache_us(many, Target.named("h200")) == pytest.approx(read / 4.8e6)
    hidden = Workload.parse("decode_b16_h32_kv8_q1_k8192_d128_bf16_causal_w1023")
    assert cache_us(hidden, H100) == pytest.approx(cache_us(many, H100) / 8, rel=0.01)
    chunk = Workload.parse("prefill_b4_h32_kv8_q2048_k8192_d128_bf16_causal_page64")
    assert cache_us(chunk, H100) == roofline(chunk, H100).bounds_us[HBM]
    assert cache_us(Workload.parse("q8192"), H100) == 0.0  # its mask might hide whole keys
    other = Target.seen("NVIDIA H1000", (9, 0), 132)
    assert not other.is_known_product and cache_us(many, other) == 0.0


@pytest.mark.parametrize("path", CACHE_FIGURES, ids=lambda path: path.stem)
def test_no_time_of_a_cache_is_impossible(path: Path) -> None:
    """Times on H200s are longer than the memory needs, those of peers too."""
    points, h200 = point_files.read(path), Target.named("h200")
    assert points
    for point in points:
        least_us = cache_us(Workload.parse(point["workload"]), h200)
        assert 0.0 < least_us < min(point["us"].values()), point["workload"]


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
