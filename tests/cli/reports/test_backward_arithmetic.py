"""tunefa/cli/reports/backward_arithmetic.py: a calculator gives the figures of the model."""

from __future__ import annotations

import random

import pytest

from tunefa.cli.reports import step
from tunefa.costmodel import latency
from tunefa.spec.target import Case
from tunefa.spec.trial import Resources


@pytest.mark.parametrize("arch", ["sm80", "sm90"])
@pytest.mark.parametrize(
    "text", ["bwd_q4096_d128", "bwd_q4096_d64_full", "bwd_q1024_d64_fp32", "bwd_q1024_softcap"]
)
@pytest.mark.parametrize(
    "kernel",
    ["attention_bwd_triton", "attention_bwd_cuda_sm90", "attention_bwd_two_pass_gluon_sm90"],
)
def test_the_formulas_give_the_cycles(kernel: str, arch: str, text: str) -> None:
    case = Case.from_names(kernel, text, arch)
    if why := case.why_not():
        assert "sm90" in kernel, why
        return
    for config in random.Random(0).sample(case.feasible().configs, 10):
        needed = Resources(32768, 128, 24, 0)
        found = latency.of(case).predict(case, config, needed)
        lines = step.of(case, config, needed, found).lines
        for pipe, cycles in found.cycles_per_step.items():
            numbers = lines[pipe][1].replace(",", "").replace("x", "*")
            assert eval(numbers) == pytest.approx(cycles, rel=1e-3), (pipe, lines[pipe])


def test_the_size_names_the_tiles_of_queries() -> None:
    case = Case.from_names("attention_bwd_triton", "bwd_q4096_d64", "sm90")
    config = {**case.default(), "BLOCK_M2": 128, "BLOCK_N2": 32}
    found = latency.of(case).predict(case, config, Resources(32768, 128, 0, 0))
    said = step.of(case, config, Resources(32768, 128, 0, 0), found).size
    assert said.endswith("and for dQ as many scores of 128 by 32")
