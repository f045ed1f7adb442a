"""The kernel that computes gradients on an H200 without a record: the one measured fastest."""

from __future__ import annotations

import warnings

import pytest

from tests.support.fixed_store import Fixed
from tunefa.compile import nvrtc
from tunefa.errors import TunefaError
from tunefa.runtime import candidates
from tunefa.runtime.choose import choose
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store.lookup import Choice

H200 = Target.named("h200")
OF_GRADIENTS = [each for each in map(kernels.load, kernels.names()) if each.op == "bwd"]
CUDA, TWO_PASS = "attention_bwd_cuda_sm90", "attention_bwd_two_pass_gluon_sm90"
WITHOUT_PADDING = "attention_bwd_two_pass_cuda_sm90"
CUDNN = "attention_bwd_cudnn"
MEASURED_US: dict[str, dict[str, float]] = {
    "q256_d64_full": {CUDA: 402, TWO_PASS: 321},
    "q256_d64_causal": {CUDA: 337, TWO_PASS: 299},
    "q512_d64_full": {CUDA: 496, TWO_PASS: 512, CUDNN: 628},
    "q512_d64_causal": {CUDA: 383, TWO_PASS: 347, CUDNN: 515},
    "q1024_d64_full": {CUDA: 718, TWO_PASS: 858, CUDNN: 930},
    "q1024_d64_causal": {CUDA: 498, TWO_PASS: 530, CUDNN: 683},
    "q4096_d64_full": {CUDA: 2434, TWO_PASS: 3108, CUDNN: 3247},
    "q4096_d64_causal": {CUDA: 1322, TWO_PASS: 1696, CUDNN: 1789},
    "q512_d80_causal": {CUDA: 318, TWO_PASS: 287},
    "q512_d96_full": {CUDA: 409, TWO_PASS: 394},
    "q512_d96_causal": {CUDA: 335, TWO_PASS: 296},
    "q1024_d80_full": {CUDA: 563, TWO_PASS: 674},
    "q1024_d80_causal": {CUDA: 407, TWO_PASS: 437},
    "q1024_d96_full": {CUDA: 608, TWO_PASS: 683},
    "q1024_d96_causal": {CUDA: 428, TWO_PASS: 446},
    "q512_d128_full": {CUDA: 451, TWO_PASS: 412, CUDNN: 503},
    "q512_d128_causal": {CUDA: 353, TWO_PASS: 308, CUDNN: 408},
    "q1024_d128_full": {CUDA: 711, TWO_PASS: 747, CUDNN: 779},
    "q1024_d128_causal": {CUDA: 460, TWO_PASS: 462, CUDNN: 537},
    "q4096_d128_full": {CUDA: 2332, TWO_PASS: 2668, CUDNN: 2640},
    "q4096_d128_causal": {CUDA: 1259, TWO_PASS: 1375, CUDNN: 1489},
    "q16384_d128_full": {CUDA: 8567, CUDNN: 10378},
    "q16384_d128_causal": {CUDA: 4389, CUDNN: 5427},
    "q512_d256_full": {TWO_PASS: 479, CUDNN: 718},
    "q512_d256_causal": {TWO_PASS: 343, CUDNN: 484},
    "q4096_d256_full": {TWO_PASS: 2727, CUDNN: 3586},
    "q4096_d256_causal": {TWO_PASS: 1377, CUDNN: 1844},
    "q16384_d256_full": {TWO_PASS: 10918, CUDNN: 15771},
    "q16384_d256_causal": {TWO_PASS: 5329, CUDNN: 7335},
}
"""Medians in us on an H200: bf16, cold L2 cache, 16,384 tokens, heads x head_dim = 2,048, but 16
heads at head_dim 80 and 96."""


def chosen(text: str, among: list[Kernel]) -> Choice:
    """The choice for 16,384 tokens and 2,048 columns, without records. It must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shape = Workload.parse(f"bwd_{text}")
        heads, batch = 2048 // shape.head_dim, 16384 // shape.seqlen_q
        made = choose(Fixed([]), Workload.parse(f"bwd_b{batch}_h{heads}_{text}"), H200, among)
    assert made.how == "default"
    return made


@pytest.mark.parametrize("text", MEASURED_US)
def test_the_kernel_that_was_measured_fastest_runs(text: str) -> None:
    times = MEASURED_US[text]
    assert chosen(text, OF_GRADIENTS).kernel == min(times, key=lambda name: times[name])


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_lengths_that_were_not_measured(mask: str) -> None:
    for seqlen in (2048, 4096, 8192, 16384):
        for head_dim in (40, 64, 80, 96, 128):
            assert chosen(f"q{seqlen}_d{head_dim}_{mask}", OF_GRADIENTS).kernel == CUDA
        for sizes in ("d136", "d160", "d192", "d192_dv128"):
            text = f"q{seqlen}_{sizes}_{mask}"
            assert chosen(text, OF_GRADIENTS).kernel == WITHOUT_PADDING
        for head_dim in (200, 256):
            assert chosen(f"q{seqlen}_d{head_dim}_{mask}", OF_GRADIENTS).kernel == TWO_PASS
    for seqlen in (128, 512, 1024):
        text = f"q{seqlen}_d192_{mask}_deterministic"
        assert chosen(text, OF_GRADIENTS).kernel == WITHOUT_PADDING


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
def test_deterministic_gradients_take_the_same_kernel(head_dim: int) -> None:
    for seqlen in (256, 4096, 16384):
        for mask in ("causal", "full"):
            text = f"q{seqlen}_d{head_dim}_{mask}"
            ordered = chosen(f"{text}_deterministic", OF_GRADIENTS).kernel
            assert ordered == chosen(text, OF_GRADIENTS).kernel != CUDNN


def test_deterministic_gradients_of_1024_tokens_take_two_passes() -> None:
    for shape in ("d64_causal", "d128_causal", "d128_full"):
        assert chosen(f"q1024_{shape}_deterministic", OF_GRADIENTS).kernel == TWO_PASS
    assert chosen("q1024_d64_full_deterministic", OF_GRADIENTS).kernel == CUDA


@pytest.mark.parametrize("flag", ["", "_deterministic"])
def test_few_tiles_of_large_groups_are_split(flag: str) -> None:
    for shape in ("h8_kv1_q8192_d128", "h64_kv8_q1024_d64", "h64_kv8_q512_d128"):
        found = choose(Fixed([]), Workload.parse(f"bwd_b1_{shape}{flag}"), H200, OF_GRADIENTS)
        assert found.kernel == CUDA and found.config["GROUP_SPLITS"] > 1


def test_deterministic_gradients_of_few_heads_take_two_passes() -> None:
    """Many CTAs of a head would run at the same time, and wait for each other."""
    for batch, heads_kv, kernel in ((1, 7, TWO_PASS), (1, 8, CUDA), (2, 3, TWO_PASS), (4, 2, CUDA)):
        text = f"bwd_b{batch}_h{4 * heads_kv}_kv{heads_kv}_q4096_d128_causal_deterministic"
        assert choose(Fixed([]), Workload.parse(text), H200, OF_GRADIENTS).kernel == kernel


def test_what_hopper_s_kernels_do_not_serve_is_left_to_triton() -> None:
    for text in ("q4096_d128_causal_softcap", "q4096_d64_dv32"):
        assert chosen(text, OF_GRADIENTS).kernel == "attention_bwd_triton"


def test_without_nvrtc_gradients_take_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No warning says that the kernel in CUDA C++ cannot be compiled."""

    def missing() -> None:
        raise TunefaError("there is no NVRTC: pip install cuda-bindings")

    monkeypatch.setattr(nvrtc, "installed", missing)
    left = list(candidates.compilable(OF_GRADIENTS, H200.arch))
    assert CUDA not in {each.name for each in left}
    for text in ("q4096_d128_causal", "q4096_d64_full", "q16384_d128_full", "q4096_d192_full"):
        assert chosen(text, left).kernel == TWO_PASS
