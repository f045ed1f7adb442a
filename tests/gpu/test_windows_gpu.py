"""Sliding windows and soft-caps on a CUDA device: `tunefa.flash_attention` and the kernels that
serve them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.gpu_kernels import judge_random_configs, seen_target, served
from tunefa.measure import check, reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.comparison import LSE_TOLERANCE, TOLERANCE
from tunefa.spec.workload import Workload

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

RANDOM = 20
"""Random shapes of each kind."""
CONFIGS = 12
"""Random configs of each kernel; a binary takes seconds to compile."""


def call(workload: Workload, softcap: float | None) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """((q, k, v), out, lse), heads first, of a call through the public function."""
    q, k, v = check.tensors(workload, "cuda", seed=0)[:3]
    options: Any = {"window": workload.band, "softcap": softcap, "layout": "bhsd"}
    out, lse = tunefa.flash_attention(q, k, v, causal=workload.causal, return_lse=True, **options)
    return (q, k, v), out, lse


def judge(workload: Workload, softcap: float | None = None) -> None:
    """Raises AssertionError where a call is not near the reference in fp64."""
    softcap = softcap or check.softcap(workload)
    (q, k, v), out, lse = call(workload, softcap)
    chosen = tunefa.last_choice()
    ours = {case.kernel.name for case in served(workload)}
    assert chosen is not None and (chosen.kernel in ours) == bool(ours), chosen
    assert chosen.workload in (workload, None)
    scale = workload.head_dim**-0.5
    mask = (workload.window_left, workload.window_right)
    inputs = AttentionInputs(
        q.double(), k.double(), v.double(), workload.causal, scale, *mask, softcap
    )
    right, right_lse = reference.attention(inputs)
    error = float((out.double() - right).norm() / right.norm().clamp_min(1e-30))
    assert error <= TOLERANCE[workload.dtype], f"{error:.1e} on {workload}: {chosen}"
    seen = right_lse.isfinite()
    assert torch.equal(lse.isneginf(), ~seen), str(workload)
    # The hardware's tanh is off by up to 2^-11 of a score, and a row may see just one.
    tanh_error = 0.0 if softcap is None else 2**-11 * min(softcap, 8.0)
    limit = LSE_TOLERANCE + tanh_error
    assert float((lse - right_lse)[seen].abs().max()) <= limit, str(workload)


@pytest.mark.parametrize("window", [1, 2, 17, 63, 64, 65, 128, 200, 511])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(512, 512), (300, 700), (700, 300), (1, 600)])
def test_windows_below_at_and_above_a_block(seqlen_q: int, seqlen_k: int, window: int) -> None:
    judge(Workload.parse(f"b2_h4_kv2_q{seqlen_q}_k{seqlen_k}_d128_bf16_w{window}"))


@pytest.mark.parametrize("sides", ["w1_a1", "a17", "full_w65", "w64_a64", "w100_a300", "w300_a5"])
@pytest.mark.parametrize(("seqlen_q", "seqlen_k"), [(512, 512), (300, 700), (700, 300), (9, 600)])
def test_windows_of_two_sides(seqlen_q: int, seqlen_k: int, sides: str) -> None:
    judge(Workload.parse(f"b2_h4_kv2_q{seqlen_q}_k{seqlen_k}_d128_bf16_{sides}"))


@pytest.mark.parametrize("mask", ["causal", "full", "w200", "w100_a50", "full_w100", "a90"])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_soft_caps(head_dim: int, mask: str) -> None:
    for seqlens in ((512, 512), (300, 700), (700, 300)):
        shape = f"b2_h4_kv2_q{seqlens[0]}_k{seqlens[1]}_d{head_dim}_bf16_{mask}_softcap"
        judge(Workload.parse(shape))


@pytest.mark.parametrize("softcap", [0.5, 5.0, 50.0])
def test_soft_caps_of_any_value_run_one_config(softcap: float) -> None:
    workload = Workload.parse("b2_h8_kv2_q500_d128_bf16_softcap")
    judge(workload, softcap)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.workload in (workload, None)


@pytest.mark.parametrize(
    "kind", ["d64_bf16", "d128_fp16", "d80_bf16", "d256_bf16", "d192_dv128_fp16"]
)
def test_random_problems(kind: str) -> None:
    chance = random.Random(kind)
    for _ in range(RANDOM):
        heads_kv, group = chance.randint(1, 4), chance.choice([1, 2, 3, 8])
        seqlens = [chance.randint(1, chance.choice([40, 400, 2000])) for _ in range(2)]
        w, a = (chance.randint(1, chance.choice([8, 100, 1000])) for _ in range(2))
        mask = chance.choice([f"w{w}", f"w{w}_a{a}", f"a{a}", f"full_w{w}"])
        cap = chance.choice(["", "_softcap"])
        heads = f"b{chance.randint(1, 3)}_h{heads_kv * group}_kv{heads_kv}"
        judge(Workload.parse(f"{heads}_q{seqlens[0]}_k{seqlens[1]}_{kind}_{mask}{cap}"))


def test_a_window_without_keys_ahead_is_the_causal_call_to_the_bit() -> None:
    q, k, v = check.tensors(Workload.parse("b2_h8_kv2_q300_k500_d128_bf16"), "cuda", seed=0)[:3]
    for number, pair in ((None, (None, 0)), (70, (69, 0))):
        right = tunefa.flash_attention(q, k, v, causal=True, window=number, layout="bhsd")
        out = tunefa.flash_attention(q, k, v, window=pair, layout="bhsd")
        assert torch.equal(out, right)


def test_a_window_of_all_keys_is_the_causal_call_to_the_bit() -> None:
    workload = Workload.parse("b2_h8_kv2_q300_k500_d128_bf16")
    q, k, v = check.tensors(workload, "cuda", seed=0)[:3]
    right = tunefa.flash_attention(q, k, v, causal=True, layout="bhsd")
    causal = tunefa.last_choice()
    for window in (500, 10**6):
        out = tunefa.flash_attention(q, k, v, causal=True, window=window, layout="bhsd")
        assert torch.equal(out, right) and tunefa.last_choice() == causal


def test_what_no_kernel_serves_runs_in_pytorch() -> None:
    judge(Workload.parse("b2_h4_kv2_q200_k260_d64_fp32_w50"))
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel == "pytorch" and "no kernel serves" in chosen.why


@pytest.mark.parametrize(
    "text",
    [
        *("q8192_d128_w1024", "q8192_d64_fp16_w100", "q8192_d256_w4096", "q8192_d128_w500_a500"),
        *(
            "q8192_d64_a100",
            "q8192_d128_full_w300",
            "q8192_d128_softcap",
            "q8192_d256_full_softcap",
        ),
        "q8192_d64_w200_a20_softcap",
    ],
)
def test_random_configs_pass_the_gate(text: str) -> None:
    workload = Workload.parse(text)
    if not served(workload):
        pytest.skip(f"no kernel serves windows on {seen_target().arch.name}")
    judge_random_configs(workload, CONFIGS)
