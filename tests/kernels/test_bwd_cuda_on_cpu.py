"""kernels/attention_bwd_cuda_sm90.cu on the CPU, with the kernels that run before and after it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.support import cuda_on_cpu
from tests.support.backward_on_cpu import EARLY, MODES, SMALL, inputs, packed, ran
from tests.support.cuda_on_cpu import Mode
from tests.support.launch_specs import spec_of
from tunefa.compile.launch import cuda_abi
from tunefa.compile.launch.driver import DriverError
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_bwd_cuda_sm90")
SM90 = archs.load("sm90")
pytestmark = pytest.mark.skipif(cuda_on_cpu.COMPILER is None, reason="needs g++")

TWO_K = {"PERSISTENT": 1, "K_STAGES": 2}
CASES: list[tuple[str, dict[str, int]]] = [
    ("h2_q200_k200_d128_bf16_causal", {"L2_SECTION_HEADS": 2, "PING_PONG": 1}),
    (
        "h1_q330_k140_d128_fp16_full",
        {"BLOCK_M": 80, "STAGGER": 2, "PING_PONG": 1, "ZERO_DQ": 0, "DQ_FIRST": 1},
    ),
    ("h4_kv1_q300_k100_d40_bf16_causal", {"BLOCK_M": 128, "PING_PONG": 1, "ZERO_DQ": 0, **EARLY}),
    ("h2_q100_k300_d64_fp16_full", {"BLOCK_M": 96, "PING_PONG": 1, **EARLY, "K_IN_REGISTERS": 0}),
    ("h2_kv1_q400_k400_d128_bf16_causal_w70", {"BLOCK_M": 80, "PING_PONG": 1}),
    ("h4_kv2_q300_k420_d64_fp16_full_w1_a5", {"L2_SECTION_HEADS": 2, "PING_PONG": 1}),
    # No row sees the first keys, then the last rows.
    ("b2_h2_kv1_q70_k600_d64_bf16_causal_w40", {"PING_PONG": 1, **EARLY, "EARLY_SCORES": 0}),
    ("h2_kv1_q500_k130_d96_bf16_full_w130_a20", {"Q_STAGES": 2}),
    ("h1_q300_k260_d128_bf16_full_w150", {"BLOCK_M": 80}),
    ("h2_q270_k384_d64_bf16_full_a60", {"L2_SECTION_HEADS": 2}),
    (
        "h2_kv1_q500_k130_d80_bf16_full_w130_a20",
        {"DQ_WARPGROUP": 1, "PING_PONG": 1, "Q_STAGES": 3, "ZERO_DQ": 0},
    ),
    (
        "h3_kv1_q400_k400_d128_bf16_causal_w70",
        {"HEADS_INSIDE": 1, "BLOCK_M": 80, "PING_PONG": 1, "ZERO_DQ": 0},
    ),
    (
        "b2_h4_q270_k330_d128_bf16_full",
        {"PERSISTENT": 1, "BLOCK_M": 80, "STAGGER": 1, "PING_PONG": 1, "DQ_FIRST": 1},
    ),
    ("b3_h4_kv2_q130_k300_d64_bf16_causal", {"PERSISTENT": 1, "PING_PONG": 1, **EARLY}),
    (
        "b2_h4_kv2_q270_k330_d96_bf16_causal",
        {"PERSISTENT": 1, "DQ_WARPGROUP": 1, "PING_PONG": 1, "Q_STAGES": 3, "HEADS_INSIDE": 1},
    ),
    ("b2_h5_q60_k330_d64_fp16_full", {**TWO_K, "BLOCK_M": 128, **EARLY, "PING_PONG": 1}),
    (
        "b3_h4_kv2_q130_k300_d128_bf16_causal",
        {**TWO_K, "PING_PONG": 1, "HEADS_INSIDE": 1, "L2_SECTION_HEADS": 4},
    ),
    ("h1_q130_k100_d128_bf16_full", {**TWO_K, "STAGGER": 1}),
    ("b2_h2_q300_k330_d64_bf16_causal", {**TWO_K, **EARLY, "DQ_FIRST": 0, "Q_STAGES": 3}),
    (
        "b2_h4_kv2_q270_k330_d64_bf16_causal",
        {**EARLY, "FOLD_ROW_TERMS": 1, "PING_PONG": 1, "BLOCK_M": 128, "K_IN_REGISTERS": 0},
    ),
    ("h3_q400_k400_d128_bf16_causal_w70", {"FOLD_ROW_TERMS": 1, "ZERO_DQ": 0}),
    ("h4_kv1_q200_k300_d96_bf16_causal", {"FOLD_ROW_TERMS": 1, "DQ_WARPGROUP": 1, "PING_PONG": 1}),
    (
        "b2_h4_kv1_q130_k300_d128_bf16_causal",
        {"GROUP_SPLITS": 2, "BLOCK_M": 80, "PING_PONG": 1, "L2_SECTION_HEADS": 2},
    ),
    (
        "b2_h8_kv2_q130_k200_d40_bf16_full",
        {**EARLY, **TWO_K, "GROUP_SPLITS": 4, "FOLD_ROW_TERMS": 1, "STAGGER": 1},
    ),
    (
        "b2_h4_kv2_q70_k600_d72_bf16_causal_w40",
        {"GROUP_SPLITS": 2, "PERSISTENT": 1, "DQ_WARPGROUP": 1, "HEADS_INSIDE": 1},
    ),
    # A CTA with one step.
    ("h1_q40_k200_d104_bf16_full", {"DQ_WARPGROUP": 1, "PING_PONG": 1}),
]


@pytest.mark.parametrize(("text", "changes"), CASES, ids=[text for text, _ in CASES])
def test_gradients_are_right(text: str, changes: dict[str, int], tmp_path: Path) -> None:
    """They are right in each mode, and dk and dv to the same bits."""
    workload, config = Workload.parse(f"bwd_{text}"), {**SMALL, **changes}
    assert KERNEL.why_not(workload, SM90) is None
    assert KERNEL.refusal(config, workload, SM90) is None
    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
    tensors, right = inputs(workload)
    first, *others = [ran(run, workload, tensors, mode) for mode in MODES]
    limit = 1.5e-3 if workload.dtype == "fp16" else 1e-2
    for found, wanted in zip(first, right, strict=True):
        assert (found.double() - wanted).norm() <= limit * wanted.norm()
    for other in others:
        assert all(map(torch.equal, first[1:], other[1:]))
        assert (other[0].double() - right[0]).norm() <= limit * right[0].norm()


@pytest.mark.parametrize("folded", [0, 1])
def test_keys_that_are_not_there_give_nothing_where_scores_are_very_low(
    folded: int, tmp_path: Path
) -> None:
    """Zeros stand for them, and exp(0 - lse) is infinite if all other scores are below -1,000."""
    workload = Workload.parse("bwd_h1_q70_k140_d64_bf16_full")
    run = cuda_on_cpu.compiled(KERNEL, workload, {**SMALL, "FOLD_ROW_TERMS": folded}, tmp_path)
    tensors, _ = inputs(workload)
    tensors[0].fill_(32.0), tensors[1].fill_(-32.0)
    tensors[4].copy_(torch.logsumexp(torch.full((70, 140), -32.0 * 32 * 8), -1))
    assert all(each.isfinite().all() for each in ran(run, workload, tensors, MODES[1]))


PACKED: list[tuple[str, dict[str, int], list[tuple[int, int]]]] = [
    (
        "b4_h2_kv1_q260_k260_d64_bf16_causal",
        {"PING_PONG": 1, **EARLY},
        [(70, 70), (1, 1), (0, 0), (260, 260)],
    ),
    (
        "b5_h4_kv2_q130_k200_d128_fp16_full",
        {"BLOCK_M": 80, "STAGGER": 1},
        [(80, 129), (130, 0), (20, 128), (0, 200), (3, 50)],
    ),
    (
        "b3_h2_q300_k260_d64_bf16_causal_w50",
        {"L2_SECTION_HEADS": 2},
        [(64, 260), (300, 100), (130, 7)],
    ),
    (
        "b2_h1_q90_k140_d96_bf16_full_w30_a9",
        {"BLOCK_M": 80},
        [(90, 140), (33, 90)],
    ),
    (
        "b3_h6_kv2_q200_k200_d128_bf16_causal",
        {"HEADS_INSIDE": 1, "BLOCK_M": 80, "L2_SECTION_HEADS": 2},
        [(130, 130), (0, 70), (200, 200)],
    ),
    (
        "b5_h4_kv2_q130_k200_d128_fp16_full",
        {"PERSISTENT": 1, "BLOCK_M": 80, "ZERO_DQ": 0, "GROUP_SPLITS": 2},
        [(80, 129), (130, 0), (20, 128), (0, 200), (3, 50)],
    ),
    (
        "b3_h2_q300_k260_d64_bf16_causal_w50",
        {"PERSISTENT": 1, "DQ_WARPGROUP": 1},
        [(64, 260), (300, 100), (130, 7)],
    ),
    (
        "b3_h2_kv1_q200_k200_d96_bf16_causal",
        {"DQ_WARPGROUP": 1, "PING_PONG": 1, "GROUP_SPLITS": 2},
        [(130, 130), (0, 70), (200, 200)],
    ),
    (
        "b3_h2_kv1_q300_k200_d64_bf16_causal",
        {"PERSISTENT": 1, "FOLD_ROW_TERMS": 1, **EARLY},
        [(70, 70), (0, 130), (300, 200)],
    ),
]


@pytest.mark.parametrize(("text", "changes", "lengths"), PACKED, ids=[each[0] for each in PACKED])
def test_gradients_of_packed_sequences_are_right(
    text: str, changes: dict[str, int], lengths: list[tuple[int, int]], tmp_path: Path
) -> None:
    """They are right with neighbours that are NaN, and nothing is written behind the last one."""
    workload, config = Workload.parse(f"bwd_{text}_varlen"), {**SMALL, **changes}
    assert KERNEL.why_not(workload, SM90) is None
    assert KERNEL.refusal(config, workload, SM90) is None
    run = cuda_on_cpu.compiled(KERNEL, workload, config, tmp_path)
    tensors, right = packed(workload, lengths)
    starts = tensors[10], tensors[11], tensors[11]
    limit = 1.5e-3 if workload.dtype == "fp16" else 1e-2
    for of_nan in (None, *range(len(lengths))):
        changed = [x.clone() for x in tensors]
        if of_nan is not None:
            for i in (0, 1, 2, 3, 5):
                begin, end = tensors[10 + (i in (1, 2))][of_nan : of_nan + 2]
                changed[i][begin:end] = torch.nan
        made = ran(run, workload, tuple(changed), MODES[(of_nan or 0) % len(MODES)])
        for found, wanted, each in zip(made, right, starts, strict=True):
            kept = torch.ones(len(found), dtype=torch.bool)
            kept[each[-1] :] = False
            assert found[~kept].isnan().all()
            if of_nan is not None:
                kept[each[of_nan] : each[of_nan + 1]] = False
            error = (found.double() - wanted)[kept].norm()
            assert error <= limit * wanted[kept].norm()


def test_one_launch_serves_packed_calls_with_other_numbers_of_rows() -> None:
    """A launch is prepared once for all numbers of rows with the same next power of two."""
    workload = Workload.parse("bwd_b3_h4_kv2_q64_k64_d64_bf16_causal_varlen")
    spec = spec_of(KERNEL, workload, SMALL)

    def launches(*lengths: tuple[int, int]) -> list[object]:
        made, _ = packed(workload, lengths)
        tensors = [*made[:6], torch.zeros(()).expand(made[6].shape), *made[7:]]
        tensors += [torch.empty(shape, dtype=dtype) for shape, dtype in spec.scratch(tensors)]
        sides = (spec.preprocess_arguments, spec.arguments, spec.postprocess_arguments)
        each = [side(tensors) for side in sides]
        found = [(grid, cuda_abi.parameters(given, tensors)[0]) for grid, given in each]
        return [*found, *(x.shape for x in tensors[-3:])]

    assert launches((64, 64), (30, 20), (2, 2)) == launches((64, 50), (50, 0), (0, 64))


APART = {"DQ_WARPGROUP": 1}
MISTAKES: list[tuple[str, dict[str, int], str]] = [
    ("dS is overwritten too early", APART, r"mbarrier_wait\(barriers\(\)\.ds_empty.*?\);"),
    (
        "dQ reads dS that is not there",
        {},
        r"if \(has_dq\(step\)\) mbarrier_wait\(barriers\(\)\.ds_full.*?\);",
    ),
    ("dQ's buffer is overwritten too early", {}, r"mbarrier_wait\(barriers\(\)\.dq_empty\(p.*?\);"),
    ("Q's stage is released too early", {}, r"else\s*wgmma_wait<0>\(\);(?=\s*free_q)"),
    ("TMA does not see dQ", {}, r"fence_proxy_async\(\);(?=\s*arrive_warp\(barriers\(\)\.dq_full)"),
    (
        "the warpgroup for dQ reads dS that is not there",
        APART,
        r"mbarrier_wait\(barriers\.ds_full.*?\);",
    ),
    ("dK is written where dQ still is", APART, r"named_barrier_sync\(DQ_IS_ADDED.*?\);"),
    (
        "Q's stage is released too early, without dQ",
        APART,
        r"wgmma_wait<0>\(\);(?=\s*free_q\(step\);\s*start_dp)",
    ),
]


@pytest.mark.parametrize(
    ("what", "changes", "pattern"), MISTAKES, ids=[what for what, *_ in MISTAKES]
)
def test_the_cpu_finds_mistakes(
    what: str, changes: dict[str, int], pattern: str, tmp_path: Path
) -> None:
    workload = Workload.parse("bwd_h1_q400_k128_d64_bf16_full")

    def change(source: str) -> str:
        changed, count = re.subn(pattern, ";", source, flags=re.DOTALL)
        assert count, "the source has no such place"
        return changed

    run = cuda_on_cpu.compiled(KERNEL, workload, {**SMALL, **changes}, tmp_path, change)
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


def test_a_first_step_skips_scores_of_hidden_keys_alone(tmp_path: Path) -> None:
    workload, edge = Workload.parse("bwd_h1_q200_d64_bf16_causal"), "< tile.key + 64 * warpgroup"
    tensors, right = inputs(workload)

    def error(to: str) -> float:
        run = cuda_on_cpu.compiled(KERNEL, workload, SMALL, tmp_path, lambda x: x.replace(edge, to))
        made = ran(run, workload, tensors, MODES[0])
        return float((made[1].double() - right[1]).norm() / right[1].norm())

    assert error(edge) < 1e-2 < error(f"{edge} + 64")
