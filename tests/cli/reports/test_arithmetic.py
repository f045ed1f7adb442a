"""tunefa/cli/reports/arithmetic.py: every sum comes to the figure at its end."""

from __future__ import annotations

import re

import pytest

from tests.support.explained_case import CONFIG, asked
from tunefa.cli.reports import explanation
from tunefa.cli.reports.explanation import Explanation
from tunefa.spec.expr import Expr
from tunefa.spec.trial import Resources, Trial

POINTER = {**CONFIG, "USE_TMA": 0}

FITTING = Resources(smem_bytes=98304, registers=168, spill_bytes=0, stack_bytes=0)

CASES = {
    "wgmma": ("h200", "q8192", CONFIG, FITTING),
    "full": ("h200", "q8192_full", CONFIG, FITTING),
    "mma.sync on hopper": ("h100", "q4096", {**POINTER, "BLOCK_M": 32, "num_warps": 2}, FITTING),
    "ampere": ("a100", "q4096_d64_fp16", POINTER, FITTING),
    "spills": ("sm86", "q1000_k3000_d96", POINTER, Resources(90000, 255, 364, 400)),
    "fused to a lower rate": ("h20", "q4096", CONFIG, FITTING),
    "fp32": ("sm89", "q2048_d128_dv64_fp32", {**POINTER, "BLOCK_N": 32}, FITTING),
    "fp32 on hopper": ("sm90", "q2048_fp32_full", {**POINTER, "BLOCK_N": 32}, FITTING),
    "packed": ("sm90", "q16_k8192", {**CONFIG, "BLOCK_M": 64, "PACK_GQA": 1}, FITTING),
    "too much shared memory": ("sm80", "q4096", POINTER, Resources(200000, 128, 0, 0)),
    "too many registers": ("sm80", "q4096", {**POINTER, "num_warps": 16}, Resources(1000, 200)),
    "too many of a thread": ("sm80", "q4096", POINTER, Resources(1000, 300)),
}


def explained(case: str) -> Explanation:
    arch_name, workload, config, resources = CASES[case]
    trial = Trial(config, "ok", resources=resources)
    return explanation.explain(asked(workload, arch_name), config, trial)


def value(numbers: str) -> float:
    """Evaluates a printed sum."""
    return float(Expr(numbers.replace(",", "").replace(" x ", " * "))({}))


@pytest.mark.parametrize("case", CASES)
def test_cycles_are_what_their_numbers_come_to(case: str) -> None:
    found = explained(case)
    assert not any("as tunefa/" in formula for formula, _ in found.cycle_lines.values())
    for pipe, cycles in found.prediction.cycles_per_step.items():
        _, numbers = found.cycle_lines[pipe]
        # Masks are printed as whole issue slots, 128 to the cycle.
        assert value(numbers) == pytest.approx(cycles, abs=0.01), (pipe, numbers)


@pytest.mark.parametrize("case", CASES)
def test_blocks_are_what_their_sums_come_to(case: str) -> None:
    found = explained(case)
    for limit, line in found.occupancy_lines.items():
        blocks = found.prediction.occupancy.limits[limit]
        ends = re.search(r"(?:= |^at most )([\d,]+) CTAs?( per SM)?$", line)
        assert ends is not None, line
        assert int(ends[1]) == blocks
        if limit == "blocks" or blocks == 0:
            assert limit == "blocks" or ", more than the " in line
            continue
        quotients = re.findall(r"([\d,]+(?: x \d)?)[a-zA-Z ]* / ([\d,]+)[a-z ]* = (\d+)", line)
        assert quotients, line
        for total, part, whole in quotients:
            assert int(value(f"{total} / {part}")) == int(whole), line
