"""tunefa/cli/reports/step.py: one step in words and formulas, by op."""

from __future__ import annotations

import pytest

from tunefa.cli.reports import step
from tunefa.costmodel import latency
from tunefa.spec.target import Case
from tunefa.spec.trial import Resources


@pytest.mark.parametrize(
    ("kernel", "text", "size", "through_l2"),
    [
        ("attention_fwd_triton", "q4096_d64", "M = 64 queries by N = 128 keys", "K and V"),
        ("attention_bwd_triton", "bwd_q4096_d64", "M = ", "Q, dO, K and V"),
        ("matmul_triton", "matmul_m4096", "M = 128 rows by N = 256 columns by K = 64", "A and B"),
    ],
)
def test_a_step_says_what_it_computes(kernel: str, text: str, size: str, through_l2: str) -> None:
    case = Case.from_names(kernel, text, "sm90")
    config, needed = case.default(), Resources(98304, 168, 16, 0)
    found = latency.of(case).predict(case, config, needed)
    made = step.of(case, config, needed, found)
    assert made.size.startswith(size) and made.through_l2.startswith(through_l2)
    assert set(made.lines) == set(found.cycles_per_step)
