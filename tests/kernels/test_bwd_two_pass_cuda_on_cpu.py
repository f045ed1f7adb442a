"""kernels/attention_bwd_two_pass_cuda_sm90.cu on the CPU: both passes, in several orders of threads
and copies."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support import cuda_on_cpu
from tests.support.backward_on_cpu import MODES, gradients, inputs, normal, ran
from tests.support.cuda_on_cpu import Mode
from tunefa.compile.launch.driver import DriverError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_bwd_two_pass_cuda_sm90")
SM90 = archs.load("sm90")
pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")

SMALL = {"BLOCK_M1": 64, "Q_STAGES1": 2, "DO_STAGES1": 2, "P_STAGES1": 1, "P_BYTES1": 4,
         "KV_IN_REGISTERS1": 1, "EARLY_DP1": 1, "CLUSTER_SIZE1": 1, "PERSISTENT1": 0,
         "BLOCK_N2": 64, "K_STAGES2": 2, "V_STAGES2": 1, "PERSISTENT2": 0, "DEPENDENT_LAUNCH": 0,
         "L2_SECTION_HEADS": 1}  # fmt: skip
DEFAULT = {"Q_STAGES1": 3, "P_STAGES1": 2, "P_BYTES1": 2, "KV_IN_REGISTERS1": 2, "PERSISTENT1": 1,
           "K_STAGES2": 3, "V_STAGES2": 2, "PERSISTENT2": 1}  # fmt: skip
"""The parameters of heads with 192 columns in bf16 that differ from SMALL."""
WIDE = {**DEFAULT, "CLUSTER_SIZE1": 2, "BLOCK_N2": 96, "K_STAGES2": 2, "V_STAGES2": 1}
PERSISTENT = {"PERSISTENT1": 1, "PERSISTENT2": 1, "KV_IN_REGISTERS1": 2}
CASES: list[tuple[str, dict[str, int]]] = [
    ("h1_q200_k200_d192_bf16_causal", {}),
    ("b3_h4_kv2_q130_k200_d192_bf16_causal", {**DEFAULT, "L2_SECTION_HEADS": 2}),
    ("b2_h2_q130_k300_d192_bf16_full", WIDE),
    ("h3_kv1_q70_k333_d160_bf16_causal", {**WIDE, "EARLY_DP1": 0}),
    ("h2_q190_k170_d136_fp16_full", {"CLUSTER_SIZE1": 2, "BLOCK_N2": 80, "K_STAGES2": 3}),
    ("b2_h2_q90_k130_d144_bf16_causal", {"BLOCK_M1": 48, "KV_IN_REGISTERS1": 0, "EARLY_DP1": 0}),
    ("h4_kv1_q200_k70_d136_bf16_causal", {"BLOCK_M1": 96, "BLOCK_N2": 112}),
    ("h2_kv1_q500_k130_d160_fp16_causal", {"BLOCK_M1": 80, "P_STAGES1": 2, "PERSISTENT2": 1}),
    ("b2_h4_kv2_q130_k200_d192_fp16_causal_w70", {**PERSISTENT, "EARLY_DP1": 0, "BLOCK_N2": 80}),
    ("h2_q200_k333_d184_bf16_full_w11_a20", {"BLOCK_M1": 80, "CLUSTER_SIZE1": 2}),
    ("h4_kv2_q300_k220_d192_bf16_full_w1_a5", DEFAULT),
    # No row sees the first keys, then the last rows.
    ("b2_h2_kv1_q70_k600_d136_bf16_causal_w40", {"PERSISTENT2": 1}),
    ("h1_q33_k17_d192_fp16_full", {"CLUSTER_SIZE1": 2}),
    ("b2_h4_kv2_q100_k300_d192_dv128_bf16_causal", DEFAULT),
    ("h2_q130_k200_d208_bf16_causal", {"P_BYTES1": 2, "BLOCK_M1": 48, "CLUSTER_SIZE1": 2}),
    ("h2_q70_k200_d256_fp16_full_w30_a70", {"KV_IN_REGISTERS1": 0}),
]


@pytest.mark.parametrize(("text", "changes"), CASES, ids=[text for text, _ in CASES])
def test_gradients_are_right_and_always_the_same(
    text: str, changes: dict[str, int], tmp_path: Path
) -> None:
    check(text, {**SMALL, **changes}, tmp_path)


@pytest.mark.parametrize(
    "kind", ["d192_bf16_causal", "d160_fp16_full", "d192_dv128_bf16_full", "d256_bf16_causal"]
)
def test_defaults_are_right(kind: str, tmp_path: Path) -> None:
    text = f"b2_h2_q200_k170_{kind}"
    case = Case(KERNEL, Workload.parse(f"bwd_{text}"), Target.named("sm90"))
    check(text, case.default(), tmp_path)


@pytest.mark.parametrize("mask", ["causal", "full_w1", "full_w90_a70", "full_a3"])
def test_lengths_around_the_sizes_of_blocks(mask: str, tmp_path: Path) -> None:
    chance = random.Random(mask)
    lengths = [1, 17, 63, 64, 65, 79, 80, 95, 96, 97, 127, 128, 129, 160, 192, 200, 256]
    q, k = chance.choice(lengths), chance.choice(lengths)
    heads, d = chance.choice(["h2", "h3", "h4_kv2"]), chance.choice([136, 160, 192])
    text = f"{heads}_q{q}_k{k}_d{d}_bf16_{mask}"
    case = Case(KERNEL, Workload.parse(f"bwd_{text}"), Target.named("sm90"))
    check(text, chance.choice(case.feasible().configs), tmp_path)


def check(text: str, config: dict[str, int], folder: Path) -> None:
    """Compares the gradients with the right ones, and their bits between modes and numbers of CTAs
    that run at the same time."""
    workload = Workload.parse(f"bwd_{text}")
    assert KERNEL.why_not(workload, SM90) is None
    assert KERNEL.refusal(config, workload, SM90) is None, config
    run = cuda_on_cpu.compiled(KERNEL, workload, config, folder)
    tensors, right = inputs(workload)
    first = ran(run, workload, tensors, MODES[0])
    limit = 1.5e-3 if workload.dtype == "fp16" else 1e-2
    least = limit * 1e-2 * max(float(each.norm()) for each in right)
    for found, wanted in zip(first, right, strict=True):
        assert (found.double() - wanted).norm() <= limit * wanted.norm() + least, config
    for mode, resident in zip(MODES[1:], (3, 64), strict=True):
        made = ran(replace(run, resident=resident), workload, tensors, mode)
        assert all(map(torch.equal, made, first)), (config, mode)


@pytest.mark.parametrize("p_bytes", [2, 4])
def test_keys_that_are_not_there_give_nothing_where_scores_are_very_low(
    p_bytes: int, tmp_path: Path
) -> None:
    """Zeros stand for them, and exp(0 - lse) is infinite if all other scores are below -1,000."""
    workload, config = Workload.parse("bwd_h1_q70_k140_d192_bf16_full"), {**SMALL}
    run = cuda_on_cpu.compiled(KERNEL, workload, config | {"P_BYTES1": p_bytes}, tmp_path)
    tensors, _ = inputs(workload)
    tensors[0].fill_(16.0), tensors[1].fill_(-16.0)
    low = torch.full((70, 140), -16.0 * 16 * 192**0.5)
    tensors[4].copy_(torch.logsumexp(low, -1))
    assert all(each.isfinite().all() for each in ran(run, workload, tensors, MODES[1]))


@pytest.mark.parametrize("p_bytes", [2, 4])
def test_keys_that_get_little_attention_have_exact_gradients(p_bytes: int, tmp_path: Path) -> None:
    """All queries attend to key 0, except for about a millionth each to the others."""
    workload = Workload.parse("bwd_h1_q130_k130_d192_bf16_causal")
    run = cuda_on_cpu.compiled(KERNEL, workload, {**SMALL, "P_BYTES1": p_bytes}, tmp_path)
    tensors, right = one_key(workload)
    found, wanted = ran(run, workload, tensors, MODES[0])[1], right[1]
    off = (found.double() - wanted).norm(dim=-1) / wanted.norm(dim=-1)
    assert off[..., 1:].max() <= 5e-2  # 2e-1 without P_SHIFT


def one_key(workload: Workload) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """A call's tensors, and the right gradients; see above."""
    w = workload
    q, k, v, dout, dlse = normal(w, (1, 1, w.seqlen_q), (1, 1, w.seqlen_k))
    q.mul_(0.1).add_(1.0), k.mul_(0.1), v[:, :, 1:].mul_(200.0)
    k[:, :, 0] = 14.0 * w.head_dim**-0.5
    return gradients(w, q, k, v, dout, dlse)


KEYS, QUERIES = "binary", "preprocess"
MISTAKES: list[tuple[str, str, dict[str, int], str]] = [
    (
        "Q's stage is released too early",
        KEYS,
        {},
        r"wgmma_wait<0>\(\);(?=\s*finish_dk\(step\);\s*\} else)",
    ),
    (
        "dO's stage is released too early",
        KEYS,
        {},
        r"wgmma_wait<0>\(\);(?=\s*wgmma_fence_operand\(p16\))",
    ),
    ("P is overwritten too early", KEYS, {}, r"mbarrier_wait\(barriers\(\)\.p_empty.*?\);"),
    ("P is taken before it is there", KEYS, {}, r"mbarrier_wait\(barriers\(\)\.p_full.*?\);"),
    ("TMA does not see dV", KEYS, {}, r"fence_proxy_async\(\);(?=\s*named_barrier_sync)"),
    (
        "dK overwrites dV",
        KEYS,
        PERSISTENT,
        r"mbarrier_wait\(barriers\(\)\.sum_read.*?\);",
    ),
    (
        "K of the next tile comes too early",
        KEYS,
        {**PERSISTENT, "Q_STAGES1": 3, "DO_STAGES1": 3},
        r"mbarrier_wait\(barriers\(\)\.own_empty\(0\).*?\);",
    ),
    (
        "a block of dO comes too early",
        KEYS,
        {"CLUSTER_SIZE1": 2},
        r"mbarrier_wait<\(2 > 1\)>\(barriers\(\)\.do_empty.*?\);",
    ),
    (
        "K's stage is released too early",
        QUERIES,
        {},
        r"wgmma_wait<0>\(\);(?=\s*wgmma_fence_operand\(dq\))",
    ),
    (
        "Q of the next tile comes too early",
        QUERIES,
        PERSISTENT,
        r"mbarrier_wait\(barriers\.rows_empty.*?\);",
    ),
]


@pytest.mark.parametrize(
    ("what", "step", "changes", "pattern"), MISTAKES, ids=[what for what, *_ in MISTAKES]
)
def test_the_cpu_finds_mistakes(
    what: str, step: str, changes: dict[str, int], pattern: str, tmp_path: Path
) -> None:
    workload = Workload.parse("bwd_b2_h2_q130_k200_d136_bf16_full")

    def change(source: str) -> str:
        changed, count = re.subn(pattern, ";", source, flags=re.DOTALL)
        assert count, "the source has no such place"
        return changed

    run = cuda_on_cpu.compiled(KERNEL, workload, {**SMALL, **changes}, tmp_path, change, step)
    tensors, right = inputs(workload)
    for mode in range(32):
        try:
            made = ran(run, workload, tensors, Mode(mode))
        except DriverError:
            return
        if any(
            not (each.double() - wanted).norm() <= 1e-2 * wanted.norm()
            for each, wanted in zip(made, right, strict=True)
        ):
            return
    pytest.fail(what)
