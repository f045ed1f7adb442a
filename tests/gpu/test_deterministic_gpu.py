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


def test_random_problems_are_right() -> None:
    repeated_gradients.in_time(300, repeated_gradients.right, 60)


def test_random_problems_on_several_streams_do_not_hang() -> None:
    repeated_gradients.in_time(300, repeated_gradients.soak, 60)
