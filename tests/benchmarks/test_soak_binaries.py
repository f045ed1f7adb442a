"""benchmarks/soak_binaries.py: which binaries random calls need, and that they are compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks import soak_binaries
from benchmarks.random_calls import RandomCall, TrainingStep
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

H200 = Target.named("NVIDIA H200")
CALL = RandomCall(2, 8, 2, 300, 700, 64, "bf16", True, False, 0, 0)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "b2_h8_kv2_q300_k700_d64_bf16_causal"),
        ({"bhsd": True, "causal": False, "dtype": "fp16"}, "b2_h8_kv2_q300_k700_d64_fp16_full"),
        ({"kind": "softcap"}, "b2_h8_kv2_q300_k700_d64_bf16_causal_softcap"),
        ({"kind": "window", "causal": False}, "b2_h8_kv2_q300_k700_d64_bf16_full_w71_a30"),
        # Three sequences, which are rounded up to a power of two, and so are the longest ones.
        ({"kind": "packed"}, "b4_h8_kv2_q1024_k2048_d64_bf16_causal_varlen"),
    ],
)
def test_workloads_are_those_that_lookup_is_asked_for(changes: Any, text: str) -> None:
    assert [*soak_binaries._workloads(replace(CALL, **changes))] == [Workload.parse(f"fwd_{text}")]


def test_each_binary_is_named_once_and_gradients_have_their_own() -> None:
    step = TrainingStep(**vars(CALL))
    more = replace(step, batch=3), replace(step, seqlen_k=800), replace(step, padding=64)
    found = soak_binaries.binaries([step, *more], H200)
    cases = [Case.from_names(*names) for names, _ in found]
    assert [case.workload.op for case in cases] == ["fwd", "bwd"]
    for case, (_, config) in zip(cases, found, strict=True):
        assert case.why_not() is None and case.refusal(config) is None
    other = soak_binaries.binaries([step, replace(step, head_dim=128)], H200)
    assert len(other) == 4 and other[:2] == found
    assert len(soak_binaries.binaries([CALL], H200)) == 1
