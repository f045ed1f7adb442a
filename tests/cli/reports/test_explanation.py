"""The arithmetic that `tunefa explain` prints comes to what occupancy and model say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tunefa.cli.reports import explanation
from tunefa.cli.reports.explanation import Explanation
from tunefa.spec import kernel as kernels
from tunefa.spec.expr import Expr
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Resources, Trial
from tunefa.spec.workload import Workload

KERNEL = kernels.load("attention_fwd_triton")
CONFIG: dict[str, Any] = {
    "BLOCK_M": 128,
    "BLOCK_N": 128,
    "num_warps": 8,
    "num_stages": 2,
    "USE_TMA": 1,
    "maxnreg": 0,
    "L2_SECTION_HEADS": 1,
    "PACK_GQA": 0,
}
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


def asked(workload: str, chip: str) -> Case:
    return Case(KERNEL, Workload.parse(workload), Target.named(chip))


def explained(case: str) -> Explanation:
    arch_name, workload, config, resources = CASES[case]
    trial = Trial(config, "ok", resources=resources)
    return explanation.explain(asked(workload, arch_name), config, trial)


def value(numbers: str) -> float:
    """What a printed sum comes to."""
    return float(Expr(numbers.replace(",", "").replace(" x ", " * "))({}))


@pytest.mark.parametrize("case", CASES)
def test_cycles_are_what_their_numbers_come_to(case: str) -> None:
    found = explained(case)
    assert not any("see tunefa/" in formula for formula, _ in found.cycle_lines.values())
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


def test_shared_memory_is_explained_as_promised() -> None:
    trial = Trial(CONFIG, "ok", resources=Resources(164864, 168, 0, 0))
    found = explanation.explain(asked("q8192", "sm90"), CONFIG, trial)
    assert found.occupancy_lines == {
        "threads": "256 threads / 32 = 8 warps; 64 warps per SM / 8 = 8 CTAs",
        "registers": (
            "168 per thread x 32, rounded to 5,376 per warp; 16,384 per partition / 5,376 = 3 "
            "warps; 3 x 4 partitions / 8 warps = 1 CTA"
        ),
        "smem": (
            "164,864 B + 1,024 B reserved, rounded to 165,888 B; 233,472 B per SM / 165,888 = 1 CTA"
        ),
        "blocks": "at most 32 CTAs per SM",
    }


def test_two_blocks_fit_where_the_tile_is_small_enough() -> None:
    trial = Trial(CONFIG, "ok", resources=Resources(48 * 1024 + 16384, 128, 0, 0))
    found = explanation.explain(asked("q8192_d64", "sm90"), CONFIG, trial)
    assert found.prediction.occupancy.blocks_per_sm == 2
    assert "rounded to 66,560 B; 233,472 B per SM / 66,560 = 3" in found.occupancy_lines["smem"]


def test_without_a_compiler_the_space_stands_in() -> None:
    case = asked("q8192", "sm90")
    found = explanation.explain(case, CONFIG, None)
    bounds = case.estimate(CONFIG)
    assert not found.compiled
    assert found.resources.smem_bytes == bounds["smem_bytes"]
    assert found.to_data()["resources_from"] == "lower bounds"


def test_every_refusing_rule_is_named() -> None:
    config = {**CONFIG, "BLOCK_M": 256, "BLOCK_N": 256, "num_stages": 5, "num_warps": 16}
    case = asked("q8192_d256", "sm80")
    found = explanation.explain(case, config, None)
    assert len(found.refused_by) >= 2
    assert found.refused_by[0] == case.refusal(config)
    assert set(found.refused_by) <= set(KERNEL.space.rules)


def test_a_failed_compilation_is_told() -> None:
    trial = Trial(CONFIG, "timeout", "compiling took over 60 s")
    found = explanation.explain(asked("q8192", "sm90"), CONFIG, trial)
    assert found.failure == "timeout: compiling took over 60 s"
    assert not found.compiled
