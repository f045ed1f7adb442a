"""The titles of workloads."""

from __future__ import annotations

import pytest

from tunefa.experiments.titles import title
from tunefa.spec.workload import Workload


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ("b4_h32_q2k_d64_fp16", "batch 4, 32 heads, 2,048 x 2,048, D 64, fp16, causal"),
        ("q1_k8k_full", "batch 1, 32 heads on 8, 1 x 8,192, D 128, bf16, full"),
        (
            "b2_h8_q512_d192_dv128_w100_softcap",
            "batch 2, 8 heads, 512 x 512, D 192/128, bf16, causal, window, softcap",
        ),
    ],
)
def test_titles(workload: str, said: str) -> None:
    assert title(Workload.parse(workload)) == said


def test_the_separator_stands_before_the_lengths() -> None:
    assert title(Workload.parse("h8_q64_d32"), "\n").splitlines()[1].startswith("64 x 64, D 32")
