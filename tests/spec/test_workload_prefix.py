"""tunefa/spec/workload.py: sequences that begin with the same pages."""

from __future__ import annotations

import dataclasses

from tunefa.spec.workload import Workload


def test_a_shared_prefix_is_read_once() -> None:
    text = "decode_b16_h32_kv8_q1_k8192_d128_bf16_causal_page64_prefix"
    workload = Workload.parse("decode_b16_k8k_page64_prefix")
    assert str(workload) == text and Workload.parse(text) == workload
    alone = dataclasses.replace(workload, prefix=False)
    assert (alone.prefix_keys, workload.prefix_keys) == (0, 4096)
    assert alone.io_bytes - workload.io_bytes == 15 * 4096 * 8 * (128 + 128) * 2
    assert alone.flops == workload.flops
    ragged = dataclasses.replace(workload, batch=3, seqlen_k=900, varlen=True)
    assert ragged.prefix_keys == 128, "whole pages of half of 300"
