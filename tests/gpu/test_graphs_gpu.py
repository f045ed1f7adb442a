"""CUDA graphs: capture from a shape's first call on, and what has to outlive the call."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.gpu_tensors import inputs
from tests.support.own_kernels import OwnKernels
from tests.support.tabled_kernel import tabled
from tunefa.compile.launch import prepared as launch
from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.comparison import TOLERANCE
from tunefa.runtime.process import Runtime

CUDA: Any = torch.cuda  # parts of it have no types

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("fresh"),
]


def replays(seqlen_q: int, seqlen_k: int, **options: Any) -> None:
    """Captures the first call of a shape, replays it with other inputs, calls it eagerly."""
    q, k, v = inputs(seqlen_q, seqlen_k)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tunefa.flash_attention(q, k, v, causal=True, **options)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel != "pytorch", chosen
    for seed in range(2):
        torch.manual_seed(seed)
        for each in (q, k, v):
            each.normal_()
        out.zero_()
        graph.replay()
        eager = tunefa.flash_attention(q, k, v, causal=True, **options)
        assert torch.equal(out, eager)
        x = [each.transpose(1, 2).double() for each in (q, k, v)]
        given = AttentionInputs(x[0], x[1], x[2], True, options.get("scale", 0.125))
        right, _ = reference.attention(given)
        error = (out.transpose(1, 2).double() - right).norm() / right.norm()
        assert float(error) <= TOLERANCE["bf16"]


def test_the_first_call_of_a_shape_may_be_captured() -> None:
    replays(257, 300)


def test_the_first_call_with_a_scale_may_be_captured() -> None:
    q, k, v = inputs(130, 140)
    tunefa.flash_attention(q, k, v, causal=True)
    replays(130, 140, scale=0.3)


def test_a_known_shape_may_be_captured() -> None:
    q, k, v = inputs(256, 256)
    tunefa.flash_attention(q, k, v, causal=True)
    replays(256, 256)


def test_another_thread_prepares_while_a_graph_is_captured() -> None:
    q, k, v = inputs(64, 64)
    other = inputs(99, 101)
    right = tunefa.flash_attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    failures: list[Exception] = []

    def run() -> None:
        try:
            launch.apart(0, lambda: torch.tensor([1.0] * 4096, device="cuda"))
        except Exception as error:  # whatever it is, the test reports it
            failures.append(error)

    with torch.cuda.graph(graph):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        out = tunefa.flash_attention(q, k, v, causal=True)
    graph.replay()
    assert not failures and torch.equal(out, right)
    tunefa.flash_attention(*other, causal=True)


def test_a_table_made_under_capture_serves_eager_calls_too(
    own_kernels: OwnKernels, fresh: Runtime
) -> None:
    fresh.planner.kernels = (tabled(own_kernels, "tabled_capture"),)
    replays(200, 222)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel == "tabled_capture"


def test_a_graph_outlasts_the_plan_and_its_table(own_kernels: OwnKernels, fresh: Runtime) -> None:
    fresh.planner.kernels = (tabled(own_kernels, "tabled_graph"),)
    q, k, v = inputs(200, 222)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tunefa.flash_attention(q, k, v, causal=True)
    graph.replay()
    right = out.clone()
    fresh._plans.clear()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    launch.apart(0, lambda: [torch.full((4096,), -7.0, device="cuda") for _ in range(64)])
    out.zero_()
    graph.replay()
    assert torch.equal(out, right)


def test_a_dropped_table_stays_until_the_streams_are_done(
    own_kernels: OwnKernels, fresh: Runtime
) -> None:
    fresh.planner.kernels = (tabled(own_kernels, "tabled_streams"),)
    q, k, v = inputs(200, 222)
    right = tunefa.flash_attention(q, k, v, causal=True)
    torch.cuda.synchronize()
    CUDA._sleep(1_000_000_000)
    out = tunefa.flash_attention(q, k, v, causal=True)
    fresh._plans.clear()
    gc.collect()
    launch.apart(0, lambda: [torch.full((4096,), -7.0, device="cuda") for _ in range(64)])
    torch.cuda.synchronize()
    assert torch.equal(out, right)


def test_compiles_with_cuda_graphs(own_kernels: OwnKernels, fresh: Runtime) -> None:
    """PyTorch's graph trees check that their pool holds their own tensors and no others."""
    fresh.planner.kernels = (tabled(own_kernels, "tabled_trees"),)
    q, k, v = inputs(190, 210)

    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tunefa.flash_attention(q * 2, k, v, causal=True) + 1

    compiled_block = torch.compile(block, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            out = compiled_block(q, k, v).clone()
        torch.testing.assert_close(out, block(q, k, v), rtol=2e-2, atol=2e-2)
