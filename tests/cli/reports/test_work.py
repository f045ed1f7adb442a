"""The work in a workload: its figures by hand, and the formulas that are printed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tunefa.cli.reports import work
from tunefa.costmodel import roofline
from tunefa.experiments import figure
from tunefa.experiments.roofline_figure import PREDICTED, STANDARD
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

H200 = Target.named("h200")
CAUSAL = Workload.parse("b1_h32_kv8_q8192_d128_bf16_causal")


@pytest.mark.parametrize(
    ("workload", "flops"),
    [
        ("b1_h16_q4096_k15360_d64_fp16_full", 257_698_037_760),  # 0.258 TFLOP
        ("b1_h16_q4096_d64_fp16_full", 68_719_476_736),  # 0.069: with seqlen_q twice
        ("b1_h8_q1664_d32_fp16_full", 2_835_349_504),  # 0.0028
        ("b1_h32_kv8_q8192_d128_bf16_causal", 4 * 32 * 128 * 8192 * 8193 // 2),
    ],
)
def test_flops_by_hand(workload: str, flops: int) -> None:
    assert work.to_data(Workload.parse(workload), H200)["flops"] == flops


def test_a_product_of_matrices_by_hand() -> None:
    product = Workload.parse("matmul_m8192_n4096_k2048_fp32")
    found = work.to_data(product, H200)
    assert found["flops"] == 2 * 8192 * 4096 * 2048 and found["bytes"] == 224 * 2**20
    assert found["ridge_flops_per_byte"] == pytest.approx(989.4e12 / 2 / 4.8e12, rel=0.01)
    assert not {"visible_pairs", "standard_attention"} & found.keys()
    lines = work.lines(product, H200)
    assert lines["FLOPs"] == "2 m n k = 2 x 8,192 x 4,096 x 2,048 = 137.4 GFLOP"
    assert lines["bytes"].startswith("A 64 MiB + B 32 MiB + C 128 MiB = 224 MiB")
    points = work.points(product, H200, 500.0, None)
    assert [point.label for point in points] == ["this config"]


def test_bytes_intensity_and_ridge_by_hand() -> None:
    found = work.to_data(CAUSAL, H200)
    q = 32 * 8192 * 128 * 2
    assert found["bytes"] == 2 * q + 2 * q // 4 + 32 * 8192 * 4
    assert found["flops_per_byte"] == found["flops"] / found["bytes"]
    assert found["ridge_flops_per_byte"] == pytest.approx(989.4e12 / 4.8e12, rel=0.01)
    standard = found["standard_attention"]
    scores = 32 * 8192 * 8192 * 2
    # Q K^T writes the scores; the scale, the mask's copy, the mask and the softmax each read and
    # write them; P V reads them.
    assert standard["bytes"] == 10 * scores + 8192 * 8192 + 4 * q
    assert standard["flops_per_byte"] == found["flops"] / standard["bytes"]


@pytest.mark.parametrize("text", ["decode_k8k_e4m3cache", "q8k_page64_e4m3cache"])
def test_an_e4m3_cache_has_one_byte_for_each_number(text: str) -> None:
    asked = Workload.parse(text)
    assert "K 8 MiB + V 8 MiB" in work.lines(asked, H200)["bytes"]
    assert roofline.kv_bytes(asked) == 2**24


@pytest.mark.parametrize(
    "workload",
    [str(CAUSAL), "b3_h6_kv2_q700_k900_d96_dv64_fp16_full_varlen", "b2_h4_q300_d64_e4m3_full"],
)
def test_the_printed_formula_gives_the_flops(workload: str) -> None:
    asked = Workload.parse(workload)
    said = work.lines(asked, H200)["FLOPs"]
    numbers = said.split(" = ")[1]
    made = re.sub(r"[^\d().x+ ]", "", re.sub(r"(heads|pairs).*?(?= x|$)", "", numbers))
    assert eval(made.replace("x", "*")) == asked.flops, said  # a formula of this test's own
    assert "GFLOP" in said or "TFLOP" in said or "MFLOP" in said


def test_what_limits_a_chip_is_said() -> None:
    assert "so its tensor cores are the limit" in work.lines(CAUSAL, H200)["intensity"]
    decode = Workload.parse("b1_h32_kv8_q1_k8192_d128_bf16_full")
    assert "so HBM is the limit" in work.lines(decode, H200)["intensity"]
    npu = work.lines(CAUSAL, Target.named("ascend910b3"))["intensity"]
    assert "cube units" in npu
    packed = Workload.parse("b4_h8_q512_d64_fp16_full_varlen")
    assert {"standard", "in general"}.isdisjoint(work.lines(packed, H200))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("decode_b64_h16_k8192_mla", "K with V in it 576 MiB"),
        ("decode_b64_h32_kv8_k8192_e4m3cache", "K 512 MiB + V 512 MiB"),
    ],
)
def test_the_bytes_of_a_cache_are_those_that_are_read(text: str, says: str) -> None:
    assert f" + {says} + " in work.lines(Workload.parse(text), H200)["bytes"]


def test_the_points_of_the_roofline() -> None:
    standard, predicted = work.points(CAUSAL, H200, 700.0, None)
    assert (standard.kind, predicted.kind) == (STANDARD, PREDICTED)
    assert predicted.flops_per_s == pytest.approx(CAUSAL.flops / 700e-6)
    assert standard.intensity == work.to_data(CAUSAL, H200)["standard_attention"]["flops_per_byte"]
    drawn: Any = lambda canvas: work.plot([standard, predicted], H200, canvas)  # noqa: E731
    assert "<svg" in figure.svg(drawn)
