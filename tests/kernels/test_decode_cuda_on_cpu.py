"""kernels/attention_decode_cuda_sm90.cu on the CPU, with the kernel that combines splits."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import cuda_on_cpu
from tests.support.cuda_on_cpu import Mode
from tunefa.measure import ops
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_decode_cuda_sm90")
SM90 = archs.load("sm90")
pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")

SMALL = {"BLOCK_N": 32, "num_warps": 2, "num_stages": 3, "COPIES_IN_FLIGHT": 2,
         "CTAS_PER_SM": 2, "LEAF_KEYS": 32, "MOST_LEAVES": 64, "TREE_DEPTH": 3,
         "SPLIT_COST": 32, "LAST_CTA_COMBINES": 0}  # fmt: skip
CASES: list[tuple[str, dict[str, int]]] = [
    ("b3_h8_kv2_q1_k900_d128_bf16", {}),
    ("b2_h4_kv2_q3_k333_d64_fp16_causal_w100_page16_sinks", {"BLOCK_N": 64, "LEAF_KEYS": 64}),
    ("b2_h4_kv1_q1_k300_d256_bf16_softcap", {"num_stages": 3, "TREE_DEPTH": 2}),
    ("b3_h8_kv2_q1_k500_d128_bf16_page64_e4m3cache", {"num_stages": 4}),
    (
        "b2_h4_kv2_q2_k200_d64_fp16_causal_e4m3cache_softcap",
        {"num_warps": 4, "BLOCK_N": 64, "LEAF_KEYS": 64},
    ),
    ("b70_h2_kv2_q1_k70_d64_bf16", {"SPLIT_COST": 64}),
    ("b4_h4_kv2_q2_k300_d64_fp16_e4m3cache", {"num_warps": 1, "CTAS_PER_SM": 4, "TREE_DEPTH": 5}),
    (
        "b2_h16_kv1_q2_k400_d128_bf16_causal",
        {"num_warps": 8, "BLOCK_N": 128, "LEAF_KEYS": 128, "CTAS_PER_SM": 1},
    ),
    ("b2_h4_kv2_q1_k150_d128_dv64_fp16", {"COPIES_IN_FLIGHT": 3}),
    # A split has 32 pages and more, of which the first is in the middle of 32.
    (
        "b2_h2_kv1_q1_k1700_d64_bf16_causal_w1000_page16",
        {"num_warps": 1, "CTAS_PER_SM": 4, "LEAF_KEYS": 512, "BLOCK_N": 64},
    ),
]
MODES = (Mode.LAST_WARP_FIRST, Mode.LATE_LOADS, Mode.LATE_LOADS | Mode.LANES_APART)


def made(text: str) -> tuple[Workload, tuple[Any, ...]]:
    """A call's tensors; sequences have different numbers of keys, and NaN behind them."""
    workload = Workload.parse(f"decode_{text}_varlen")
    tensors, _ = ops.of(workload).inputs(workload, "normal", "cpu")
    return workload, tensors


@pytest.mark.parametrize(("text", "changes"), CASES, ids=[text for text, _ in CASES])
def test_rows_are_right_in_the_same_bits_on_every_device(
    text: str, changes: dict[str, int], tmp_path: Path
) -> None:
    """The number of SMs decides how high splits are, and which CTA has which. One SM has all
    splits, so that the copying warp runs far ahead where it comes first."""
    (workload, tensors), config = made(text), {**SMALL, **changes}
    assert KERNEL.why_not(workload, SM90) is None
    assert KERNEL.refusal(config, workload, SM90) is None
    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
    wanted = ops.of(workload).expected(workload, "normal", tensors, torch.float64)
    found = []
    for mode, sms in zip(MODES, (1, 7, 132), strict=True):
        for output in tensors[3:5]:
            output.fill_(torch.nan)
        run(tensors, workload, mode, sms)
        compared = wanted.compare(*tensors[3:5])
        assert compared.passed, compared.reason
        found.append([output.clone() for output in tensors[3:5]])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_a_sequence_has_the_same_bits_alone(tmp_path: Path) -> None:
    workload, tensors = made("b3_h8_kv2_q1_k900_d128_bf16")
    run = cuda_on_cpu.compiled(KERNEL, workload, SMALL, tmp_path)
    run(tensors, workload)
    together = [output.clone() for output in tensors[3:5]]
    for number in range(3):
        alone = tuple(each[number : number + 1].clone() for each in tensors)
        run(alone, Workload.parse("decode_b1_h8_kv2_q1_k900_d128_bf16_varlen"), sms=20)
        for mine, theirs in zip(alone[3:5], together, strict=True):
            assert torch.equal(mine[0], theirs[number])


@pytest.mark.parametrize(
    "lengths",
    [[900, 3, -7, 777, 64, 129, 0, 900, 31, 500], [0] * 10, [1] * 9 + [900], [900] * 10],
)
def test_sequences_may_have_any_lengths(lengths: list[int], tmp_path: Path) -> None:
    """A length below 0 counts as 0: the output is zero, and the logsumexp is minus infinity."""
    workload, tensors = made("b10_h4_kv2_q1_k900_d64_bf16")
    for cache in tensors[1:3]:
        cache.nan_to_num_(nan=0.5, posinf=0.5, neginf=0.5)
    run = cuda_on_cpu.compiled(KERNEL, workload, SMALL, tmp_path)
    tensors[5].copy_(torch.tensor(lengths))
    found = []
    for sms in (132, 7):
        for output in tensors[3:5]:
            output.fill_(torch.nan)
        run(tensors, workload, Mode.LATE_LOADS, sms)
        found.append([output.clone() for output in tensors[3:5]])
    (out, lse), other = found
    assert torch.equal(out, other[0]) and torch.equal(lse, other[1])
    for number, keys in enumerate(lengths):
        assert out[number].isfinite().all()
        assert bool((out[number] == 0).all()) == (keys <= 0)
        assert bool((lse[number] == -math.inf).all()) == (keys <= 0)


@pytest.mark.parametrize("page_size", [16, 32, 48, 64, 192, 256])
def test_pages_that_are_served_have_a_default(page_size: int) -> None:
    """Blocks and pages divide one another, which no block does with 48 keys."""
    for shape in ("h32_kv8_d128", "h8_kv8_d128", "h8_kv2_d64", "h8_kv2_d256", "h32_kv1_d128"):
        workload = Workload.parse(f"decode_b2_k4k_{shape}_page{page_size}")
        refused = KERNEL.why_not(workload, SM90)
        assert (refused is not None) == (page_size == 48), refused
        if refused is None:
            config = KERNEL.default(workload, SM90)
            assert max(page_size, config["BLOCK_N"]) % min(page_size, config["BLOCK_N"]) == 0


STALE = [[0, 0, 0], [899, 1, 900], [2**30, -5, 17]]
"""Lengths of the last sequences before they change. Lanes do not keep those behind the first
128."""


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        ("b3_h8_kv2_q1_k900_d128_bf16", STALE),
        ("b3_h4_kv1_q2_k900_d64_fp16_page16", STALE),
        ("b40_h1_kv1_q1_k120_d64_bf16", [[0] * 8, [90] * 8, [120] * 8]),
        ("b140_h1_kv1_q1_k40_d64_bf16", [[0] * 8, [30] * 8]),
    ],
)
def test_lengths_may_change_until_the_kernel_before_has_ended(
    text: str, stale: list[list[int]], tmp_path: Path
) -> None:
    """The lengths that a CTA reads before its wait are others: those behind the right ones."""
    workload, tensors = made(text)
    lengths = tensors[5].tolist()

    def reads_stale_lengths(source: str) -> str:
        (early,) = re.findall(r"Lengths\(sizes, seqlens, true\)", source)
        return source.replace(early, early.replace("seqlens", "seqlens + sizes.batch"))

    run = cuda_on_cpu.compiled(KERNEL, workload, SMALL, tmp_path, reads_stale_lengths)
    found = []
    for before in ([], *stale):
        kept = lengths[: len(lengths) - len(before)]
        both = torch.tensor([*lengths, *kept, *before], dtype=torch.int32)
        given = (*tensors[:5], both[: len(lengths)], *tensors[6:])
        for output in tensors[3:5]:
            output.fill_(torch.nan)
        run(given, workload, Mode.LATE_LOADS, sms=60)
        found.append([output.clone() for output in tensors[3:5]])
    assert found[0][0].isfinite().all()
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


@given(divisor=st.integers(1, 5000), share=st.floats(0, 1), above=st.integers(-1, 1))
def test_a_multiplication_divides_exactly(divisor: int, share: float, above: int) -> None:
    """The formula of `divided` in cuda/decode_problem.cuh. Next to multiples it is hardest."""
    most = 2**32 // divisor
    number = max(0, int(share * most) // divisor * divisor + above)
    inverse = KERNEL.module._inverse(divisor)
    assert 0 <= inverse < 2**32
    found = number if divisor == 1 else number * inverse >> 32
    assert number >= most or found == number // divisor
