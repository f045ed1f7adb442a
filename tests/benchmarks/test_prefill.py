"""benchmarks/prefill.py: what runs computes the same, and the table of a file."""

from __future__ import annotations

import torch

import tunefa
from benchmarks import prefill
from tunefa.measure import ops
from tunefa.spec.workload import Workload


def test_workloads_are_of_packed_queries_over_pages() -> None:
    for text in prefill.WORKLOADS:
        workload = Workload.parse(f"{text}_page{prefill.PAGE_SIZES[0]}")
        assert workload.op == "prefill" and workload.seqlen_q <= workload.seqlen_k


def test_keys_that_follow_one_another_are_those_of_the_pages() -> None:
    workload = Workload.parse("b3_h4_kv2_q9_k21_d32_bf16_page8_varlen")
    made = [ops.of(workload).tensors(workload, "cpu", seed) for seed in range(2)]
    tensors = prefill.packed_keys(made, workload)
    for number in range(2):
        prefill.over_pages(made, workload)(number)
        q, k, v, starts_q, starts_k = tensors[number]
        mine = tunefa.flash_attention_varlen(q, k, v, starts_q, starts_k, 9, 21, causal=True)
        torch.testing.assert_close(made[number][3], mine, atol=2e-2, rtol=2e-2)
    prefill.contiguous(made, workload)(1)


def test_the_fastest_over_pages_is_bold() -> None:
    us = {"tunefa": 2.0, "contiguous": 1.0, "fa3_paged": 3.0}
    points = [{"workload": "a", "us": us, "tflops": dict.fromkeys(us, 400.4)}]
    rows = prefill.table(points).splitlines()
    assert rows[0] == "| | tunefa | contiguous | fa3_paged | fa3 |"
    assert rows[2] == "| a | **2.0 (400)** | 1.0 (400) | 3.0 (400) |  |"
