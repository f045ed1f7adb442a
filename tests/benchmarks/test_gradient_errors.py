"""benchmarks/gradient_errors.py: its workloads, its errors, its ratios."""

from __future__ import annotations

import itertools

import torch

from benchmarks import gradient_errors
from benchmarks.gradient_errors import Ratio
from tunefa.measure import ops
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload


def test_workloads_have_something_of_everything() -> None:
    every = list(itertools.islice(gradient_errors.workloads(), gradient_errors.CASES))
    for name in ("varlen", "deterministic", "softcap", "causal"):
        assert {getattr(each, name) for each in every} == {True, False}


def test_cases_are_dense_and_of_the_kernels_that_are_asked_for() -> None:
    found = gradient_errors.served(["attention_bwd_triton"], 20, Target.named("h200"))
    assert found and not any(case.workload.varlen for case in found)
    assert {case.kernel.name for case in found} == {"attention_bwd_triton"}


def test_errors_are_those_of_rounding_and_grow_with_what_is_wrong() -> None:
    workload = Workload.parse("bwd_b2_h4_kv2_q100_k133_d64_bf16_causal")
    op = ops.of(workload)
    tensors = op.tensors(workload, "cpu", 1)
    expected = op.expected(workload, "normal", tensors, torch.float64)
    made = gradient_errors.by_operators(workload, tensors)
    right = gradient_errors.errors(expected, made)
    assert all(1e-3 < overall < worst < 5e-2 for overall, worst in right)
    made[1][0, 0, 3] *= 2.0
    wrong = gradient_errors.errors(expected, made)
    assert wrong[1][1] > 0.9 and wrong[0] == right[0]


def test_a_gradient_that_is_zero_has_no_error() -> None:
    workload = Workload.parse("bwd_b1_h1_q1_k1_d64_bf16_full")
    op = ops.of(workload)
    tensors = op.tensors(workload, "cpu", 1)
    expected = op.expected(workload, "normal", tensors, torch.float64)
    zeros = [torch.zeros_like(each) for each in tensors[:3]]
    assert gradient_errors.errors(expected, zeros)[0] == (0.0, 0.0)
    assert gradient_errors._over(0.0, 0.0) == 1.0


def test_the_table_counts_what_is_beyond_the_limit() -> None:
    rows = [Ratio("k", "p", "w", "dq", overall, row) for overall, row in ((1.0, 1.2), (1.1, 1.6))]
    assert (
        gradient_errors.table(rows).splitlines()[-1]
        == "| k | dq | 2 | 1.05, 1.10 | 1.40, 1.60 | 1 |"
    )
