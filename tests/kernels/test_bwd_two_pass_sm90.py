"""The two-pass Hopper backward in Gluon, as far as no numbers are needed: what it serves, what its
rules refuse, and what the compiler says of its configs."""

from __future__ import annotations

import random

import pytest

from tunefa.compile.languages import gluon
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_bwd_two_pass_gluon_sm90")
SM90 = Target.named("sm90")


def case_of(text: str) -> Case:
    return Case(KERNEL, Workload.parse(f"bwd_{text}"), SM90)


@pytest.mark.parametrize(
    ("text", "changes", "reason"),
    [
        ("d256_full", {"WARPGROUPS1": 1}, "two warpgroups in the dKV pass"),
        ("d256_full", {"PREFETCH_S1": 0}, "256 columns need PREFETCH_S1"),
        ("d256_full", {"WARPGROUPS2": 1}, "two warpgroups in the dQ pass"),
        ("d128_full", {"KV_IN_REGISTERS1": 1}, "KV_IN_REGISTERS1 needs head dimensions"),
        ("d128_full", {"L2_SECTION_HEADS": 4}, "needs a causal mask"),
        ("d128_full", {"PERSISTENT1": 1, "PERSISTENT2": 1}, "the dKV pass must not exceed"),
        ("d256_full", {"V_STAGES2": 2}, "the dQ pass must not exceed"),
        ("d256_full", {"PERSISTENT1": 1}, "PERSISTENT1 needs head dimensions"),
        ("d64_full", {"P_BYTES1": 2}, "P_BYTES1 2 needs 256 columns"),
        ("d64_causal", {"BLOCK_M1": 128}, "BLOCK_M1 128 needs a full mask"),
        ("d64_full", {"BLOCK_M1": 128}, "BLOCK_M1 128 needs PREFETCH_S1 and"),
        ("d64_full", {"WARPGROUPS1": 3}, "WARPGROUPS1 3 needs PREFETCH_S1 and"),
        ("d128_full", {"WARPGROUPS1": 1}, "WARPGROUPS1 1 needs 64 columns"),
        ("d256_full", {"Q_STAGES1": 4}, "the dKV pass must not exceed"),
        ("d128_full", {"PREFETCH_S1": 2}, "the accumulators of the dKV pass must leave"),
        ("d128_full", {"PREFETCH_S2": 2}, "accumulators of the dQ pass must leave"),
        ("d64_full", {"WARPGROUPS2": 3, "BLOCK_N2": 128}, "of the dQ pass must leave"),
    ],
)
def test_what_cannot_work_is_refused(text: str, changes: dict[str, int], reason: str) -> None:
    case = case_of(text + "_q4096")
    assert case.refusal(case.default()) is None
    assert reason in (case.refusal({**case.default(), **changes}) or "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("d64_dv32_full", "one head dimension"),
        ("d128_causal_softcap", "soft-capped"),
        ("d128_causal_varlen", "packed sequences"),
        ("d128_fp32_causal", "bf16 and fp16 only"),
        ("d100_causal", "multiples of 8"),
    ],
)
def test_what_it_does_not_serve_is_left_to_other_kernels(text: str, reason: str) -> None:
    assert reason in (case_of(text + "_q4096").why_not() or "")


def test_it_adds_nothing_in_memory() -> None:
    case = case_of("q4096_d128_causal_deterministic")
    assert case.why_not() is None
    assert KERNEL.module.unordered(case.workload, case.default()) == ()
    assert not hasattr(KERNEL.module, "postprocess")


COMPILED = [
    # In Triton's cache: tests/contracts compiles these too.
    "h32_kv8_q4096_d128_causal",
    "h32_kv8_q4096_d64_full",
    "h32_kv8_q4096_d256_full",
    # Others.
    "h8_q1000_k3990_d64_causal_fp16",
    "h8_q1000_k3990_d128_full_w500_a20",
]


@pytest.mark.slow
@pytest.mark.parametrize("text", COMPILED)
def test_both_passes_compile_into_the_memory_of_a_cta(text: str) -> None:
    """The default, and for one workload another config."""
    case = case_of(text)
    configs = [case.default()]
    if text == COMPILED[0]:
        configs.append(random.Random(0).choice(case.feasible().configs))  # in the cache too
    for config in configs:
        compiled = gluon.compile(case, config)
        assert compiled.postprocess is None
        made, expected = compiled.resources, case.estimate(config)
        assert made.smem_bytes is not None and made.registers == expected["registers"], config
        assert 0 <= made.smem_bytes - expected["smem_bytes"] <= 800, config
        assert made.spill_bytes is not None and made.spill_bytes <= 400, config
        limit = archs.gpu(SM90.arch).smem_per_block_bytes
        assert compiled.preprocess.metadata.shared <= limit, config
