"""The libraries over a cache, on the device: problems, and calls without batch invariance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import tunefa
from tests.support.gpu_kernels import seen_target
from tests.support.random_problems import check_random
from tunefa.measure import launches, ops
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu
LIBRARIES = [
    each for each in map(kernels.load, kernels.names()) if each.is_library and each.op == "decode"
]
WITHOUT = "not support|block_table"
"""Said by builds of a library that lack a feature."""


def workloads() -> Iterator[Workload]:
    """Groups, several queries, windows, pages and lengths."""
    for text in (
        "b5_h8_kv2_k700_d128_varlen", "b3_h8_kv8_k700_d128_varlen", "b1_h32_kv8_k3000_d128",
        "b33_h4_kv1_k900_d64_fp16_varlen", "b4_h8_kv2_q4_k500_d128_varlen",
        "b4_h8_kv2_q3_k500_d128_full_varlen", "b3_h8_kv2_q16_k200_d256_varlen",
        "b3_h8_kv2_k900_d128_w50_varlen", "b3_h8_kv2_q5_k900_d64_w50_varlen",
        "b5_h8_kv2_k2000_d128_page256_varlen", "b5_h8_kv2_k700_d128_page16_varlen",
        "b5_h8_kv2_q4_k700_d128_page64_varlen", "b3_h8_kv2_k700_d128_softcap_varlen",
    ):  # fmt: skip
        yield replace(Workload.parse(f"decode_{text}"), batchvariant=True)


@pytest.mark.parametrize("name", [each.name for each in LIBRARIES])
def test_random_problems_are_right(name: str) -> None:
    check_random(kernels.load(name), workloads(), WITHOUT)


@pytest.mark.parametrize("kernel", LIBRARIES, ids=lambda kernel: kernel.name)
def test_sequences_without_keys_and_lengths_beyond_the_cache(kernel: Kernel) -> None:
    if kernel.module.version() is None:
        pytest.skip(f"{kernel.module.LIBRARY} is not installed")
    workload = Workload.parse("decode_b4_h8_kv2_k700_d128_batchvariant")
    case = Case(kernel, workload, seen_target())
    made = list(ops.of(workload).tensors(workload, "cuda", 0))
    made[5] = torch.tensor([0, 2**30, -3, 700], device="cuda", dtype=torch.int32)
    launches.launch(case, {}, made)()
    out, lse = made[3:5]
    assert not out[::2].any() and bool(lse[::2].isneginf().all())
    assert bool(out[1::2].isfinite().all()) and bool(lse[1::2].isfinite().all())


def test_a_call_without_batch_invariance_is_right_and_a_graph_is_replayed() -> None:
    kinds: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(4, 1, 32, 128, **kinds)
    k, v = torch.randn(2, 4, 3000, 8, 128, **kinds)
    seqlens = torch.tensor([3000, 17, 0, 1999], device="cuda", dtype=torch.int32)
    out = torch.empty_like(q)

    def call() -> None:
        tunefa.decode_attention(q, k, v, seqlens, batch_invariant=False, out=out)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    for lengths in ([3000, 17, 0, 1999], [5, 0, 3000, 64]):
        seqlens.copy_(torch.tensor(lengths))
        graph.replay()
        right = tunefa.decode_attention(q, k, v, seqlens)
        torch.testing.assert_close(out, right, atol=2e-2, rtol=2e-2)
