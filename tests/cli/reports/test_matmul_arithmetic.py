"""tunefa/cli/reports/matmul_arithmetic.py: a calculator gives the figures of the model."""

from __future__ import annotations

import random

import pytest

from tunefa.cli.reports import step
from tunefa.costmodel import latency
from tunefa.spec.target import Case
from tunefa.spec.trial import Resources


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
@pytest.mark.parametrize("text", ["matmul_m4096_bf16", "matmul_m4096_fp32_tt"])
def test_the_formulas_give_the_cycles(arch: str, text: str) -> None:
    case = Case.from_names("matmul_triton", text, arch)
    for config in random.Random(0).sample(case.feasible().configs, 10):
        needed = Resources(32768, 128, 24, 0)
        found = latency.of(case).predict(case, config, needed)
        lines = step.of(case, config, needed, found).lines
        for pipe, cycles in found.cycles_per_step.items():
            _, numbers = lines[pipe]
            if pipe == "issue" and config["USE_TMA"]:
                assert cycles == 0
                continue
            plain = numbers.replace(",", "").replace("x", "*")
            rate, divided, part = plain.rpartition(" / 0.62")
            value = eval(f"{rate} / 1 / 0.62" if divided and not part else plain)
            assert value == pytest.approx(cycles), (pipe, numbers)
