"""Deterministic gradients of attention_bwd_cuda_sm90 on a device: the same bits in every run, no
wrong ones, and no deadlock. Each test is a process of its own, which is killed if it hangs."""

from __future__ import annotations

import pytest

from tests.support import repeated_gradients
from tests.support.gpu_kernels import seen_target
from tunefa.compile import languages
from tunefa.spec import kernel as kernels

pytestmark = pytest.mark.gpu
RUNS = 20
TWO_K = {"PERSISTENT": 1, "K_STAGES": 2}
CASES: list[tuple[str, dict[str, int]]] = [
    ("b2_h8_q2048_d128_bf16_causal", {}),
    ("b2_h8_q2048_d128_bf16_full", {"ZERO_DQ": 1}),
    # All CTAs of a head run at the same time.
    ("b1_h4_q4096_d128_bf16_causal", {"L2_SECTION_HEADS": 1}),
    ("b1_h4_q4096_d64_bf16_full", {"L2_SECTION_HEADS": 1, "ZERO_DQ": 1}),
    ("b4_h16_kv4_q1024_k3000_d64_fp16_causal", {}),
    ("b1_h16_kv2_q3000_k1500_d128_bf16_causal", {"BLOCK_M": 80}),
    ("b2_h8_q4096_d128_bf16_causal_w300", {}),
    ("b2_h8_kv2_q2500_d96_bf16_full_w100_a50", {}),
    ("b1_h1_q16384_d128_bf16_full", {}),
    # One CTA per SM, with the last dQ of a tile in the next one, and without.
    ("b4_h16_q1000_d64_bf16_full", {**TWO_K, "L2_SECTION_HEADS": 4}),
    ("b4_h16_q1000_d64_bf16_causal", {**TWO_K, "L2_SECTION_HEADS": 8}),
    ("b2_h16_kv4_q2000_d128_bf16_causal", {"PERSISTENT": 1}),
    ("b3_h8_kv2_q900_d64_bf16_causal_varlen", {"PERSISTENT": 1}),
]
EARLY: list[tuple[str, dict[str, int]]] = [
    ("b1_h2_q200_d128_bf16_full", {}),
    ("b4_h16_q1024_d128_bf16_causal", {}),
    ("b2_h8_kv1_q1024_d128_bf16_causal", {}),
    ("b2_h16_q2000_d64_bf16_full", {}),
    ("b3_h8_kv2_q900_d96_bf16_causal", {"DQ_WARPGROUP": 1}),
    ("b4_h8_q600_d64_bf16_causal_varlen", {}),
    ("b2_h8_q1500_k900_d128_bf16_causal_w300", {"ZERO_DQ": 0}),
    ("b4_h16_q1000_d64_bf16_full", TWO_K),
    ("b4_h8_kv2_q900_d128_bf16_causal_varlen", {"PERSISTENT": 1}),
]


@pytest.fixture(autouse=True)
def _compiler() -> None:
    kernel, target = kernels.load(repeated_gradients.KERNEL), seen_target()
    if why := languages.without_compiler([kernel], target.arch).get(kernel.name):
        pytest.skip(why)
    if target.arch.name != "sm90":
        pytest.skip("needs sm90")


def test_twenty_runs_have_the_same_bits() -> None:
    cases = [(f"bwd_{text}_deterministic", changes) for text, changes in CASES]
    repeated_gradients.in_time(300, repeated_gradients.repeat_all, cases, RUNS)


def test_parts_that_are_written_early_are_finished() -> None:
    cases = [(f"bwd_{text}_deterministic", changes) for text, changes in EARLY]
    repeated_gradients.in_time(300, repeated_gradients.early_all, cases, 3 * RUNS)


def test_random_problems_are_right() -> None:
    repeated_gradients.in_time(300, repeated_gradients.right, 60)


def test_random_problems_on_several_streams_do_not_hang() -> None:
    repeated_gradients.in_time(300, repeated_gradients.soak, 60)
