"""Calls with lengths that were not seen before: their results, also from several streams and in
CUDA graphs, and that nothing is compiled or kept for them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tunefa
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.process import Runtime
from tunefa.runtime.resized import ResizedPlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
CUDA: Any = torch.cuda  # parts of it have no types
HEADS = [(8, 8), (32, 8), (16, 2)]


def buffers(heads: int, heads_kv: int, rows: int, batch: int = 2) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    shapes = heads, heads_kv, heads_kv
    return tuple(
        torch.randn(batch, rows, each, 128, device="cuda", dtype=torch.bfloat16) for each in shapes
    )


def check(out: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
    mask = None
    rows, keys = q.shape[1], k.shape[1]
    if causal:
        mask = torch.ones(rows, keys, dtype=torch.bool, device="cuda").tril(keys - rows)
    x, y, z = (each.transpose(1, 2).float() for each in (q, k, v))
    right = F.scaled_dot_product_attention(x, y, z, attn_mask=mask, enable_gqa=True)
    right = right.transpose(1, 2)
    torch.testing.assert_close(out.float(), right, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", HEADS)
def test_results_of_growing_and_random_lengths(
    fresh: Runtime, heads: tuple[int, int], causal: bool
) -> None:
    q, k, v = buffers(*heads, 900)
    chance, quick = random.Random(0), 0
    lengths = [(rows, rows) for rows in range(100, 300)]
    for _ in range(100):
        keys = chance.randint(70, 900)
        lengths.append((chance.choice([1, keys, chance.randint(1, keys)]), keys))
    for rows, keys in lengths:
        batch = 1 + rows % 2
        given = q[:batch, :rows], k[:batch, :keys], v[:batch, :keys]
        out = tunefa.flash_attention(*given, causal=causal)
        check(out, *given, causal)
        quick += isinstance(fresh._last.plan, ResizedPlan)
        again, lse = tunefa.flash_attention(*given, causal=causal, return_lse=True)
        assert torch.equal(out, again) and lse.isfinite().all()
        chosen = tunefa.last_choice()
        assert chosen is not None and chosen.workload is not None
        assert (chosen.workload.seqlen_q, chosen.workload.seqlen_k) == (rows, keys)
    assert quick > 200


def test_streams_and_graphs(fresh: Runtime) -> None:
    q, k, v = buffers(32, 8, 900)
    for rows in (300, 301, 302):
        tunefa.flash_attention(q[:, :rows], k[:, :rows], v[:, :rows], causal=True)
    stream = CUDA.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for rows in range(303, 340):
        given = q[:, :rows], k[:, :rows], v[:, :rows]
        with torch.cuda.stream(stream):
            out = tunefa.flash_attention(*given, causal=True)
        stream.synchronize()
        check(out, *given, True)
    given = q[:, :345], k[:, :345], v[:, :345]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tunefa.flash_attention(*given, causal=True)
    for rows in range(346, 400):  # the shared launch serves other lengths meanwhile
        tunefa.flash_attention(q[:, :rows], k[:, :rows], v[:, :rows], causal=True)
    out.zero_()
    graph.replay()
    check(out, *given, True)


def test_ten_thousand_lengths_leave_nothing(fresh: Runtime) -> None:
    q, k, v = buffers(8, 8, 10_200, batch=1)

    def run(lengths: range) -> None:
        for rows in lengths:
            given = Tensors(q[:, :1], k[:, :rows], v[:, :rows])
            fresh.plan(given, Options(False)).output(given, None)

    run(range(200, 1000))
    torch.cuda.synchronize()
    (compiler,) = (each for _, each in fresh.planner.devices.values())
    compiled, held = len(compiler), torch.cuda.memory_allocated()
    run(range(1000, 10_200))
    torch.cuda.synchronize()
    assert len(compiler) <= compiled + 4 and len(fresh._plans) <= 4096
    assert torch.cuda.memory_allocated() - held < 8 * 2**20
