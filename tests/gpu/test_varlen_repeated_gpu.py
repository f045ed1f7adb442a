"""Packed sequences on a CUDA device in many calls: shared plans, CUDA graphs and streams."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import tunefa
from tests.support.packed_gpu_calls import Call, cumulated, is_kernels, random_lengths
from tunefa.runtime.process import Runtime

CUDA: Any = torch.cuda  # parts of it have no types


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.usefixtures("fresh"),
]


def test_other_lengths_take_neither_another_plan_nor_a_compiler(fresh: Runtime) -> None:
    chance = random.Random(0)
    for _ in range(20):
        seqlens = [chance.randint(65, 128) for _ in range(chance.randint(9, 16))]
        seqlens[0] = 128
        call = Call(seqlens, seqlens)
        call.judge(*call.run())
    assert len(fresh._plans) <= 2  # of up to 1,024 rows, and of up to 2,048


def test_out_is_the_same_without_lse() -> None:
    """An lse that nobody reads has room for more rows."""
    for seqlens in ([65, 128, 100], [128, 127, 0], [80, 80, 80, 65], [128, 128]):
        call = Call(seqlens, seqlens, room=3)
        out, _ = call.run()
        longest = max(seqlens)
        given = call.q, call.k, call.v, *call.cu_seqlens, longest, longest
        alone = tunefa.flash_attention_varlen(*given, causal=True)
        is_kernels()
        assert torch.equal(alone[: call.rows], out[: call.rows])


def test_a_graph_may_be_replayed_with_other_lengths() -> None:
    chance = random.Random(0)
    batch, longest, total = 12, 500, 2500

    def lengths() -> list[int]:
        found: list[int] = []
        while len(found) < batch:
            left = total - sum(found)
            found.append(min(left, chance.choice([0, 1, longest, chance.randint(0, longest)])))
        return found

    for causal in (True, False):
        call = Call(lengths(), lengths(), causal=causal)
        call.rows = call.keys = total
        call.q, call.k, call.v = (
            torch.randn(total, heads, 128, device="cuda", dtype=torch.bfloat16)
            for heads in (4, 2, 2)
        )
        arguments = (call.q, call.k, call.v, *call.cu_seqlens, longest, longest)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, lse = tunefa.flash_attention_varlen(*arguments, causal=causal, return_lse=True)
        is_kernels()
        for _ in range(6):
            call.seqlens_q, call.seqlens_k = lengths(), lengths()
            for cu_seqlens, seqlens in zip(
                call.cu_seqlens, (call.seqlens_q, call.seqlens_k), strict=True
            ):
                cu_seqlens.copy_(cumulated(seqlens))
            graph.replay()
            call.rows = sum(call.seqlens_q)
            call.judge(out, lse)


def test_many_calls_in_a_row_draw_every_tile_each_time() -> None:
    """Whoever draws a tile computes the same; and no call finds what another has counted."""
    chance = random.Random(0)
    calls = []
    for batch, longest in [(32, 1500), (3, 4000), (300, 40)] * 2:
        seqlens_q, seqlens_k = ([*random_lengths(chance, batch, longest), 70] for _ in range(2))
        calls.append(Call(seqlens_q, seqlens_k, heads=8))
    rights = []
    for call in calls:
        out, lse = call.run()
        is_kernels()
        call.judge(out, lse)
        rights.append((out[: call.rows], lse[:, : call.rows]))
    for _ in range(50):
        order = chance.sample(range(len(calls)), len(calls))
        made = {i: calls[i].run() for i in order}
        for i, (out, lse) in made.items():
            right, right_lse = rights[i]
            assert torch.equal(out[: calls[i].rows], right)
            assert torch.equal(lse[:, : calls[i].rows], right_lse)


def test_a_graph_of_many_calls_is_replayed_many_times() -> None:
    calls = [Call([900, 0, 64 + i, 2000], [900, 5, 64 + i, 2000], heads=8) for i in range(4)]
    rights = [call.run() for call in calls]
    is_kernels()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = [call.run() for call in calls]
    for _ in range(50):
        for out, lse in made:
            out.fill_(float("nan"))
            lse.fill_(float("nan"))
        graph.replay()
        for (out, lse), (right, right_lse) in zip(made, rights, strict=True):
            assert torch.equal(out, right) and torch.equal(lse, right_lse)


def test_two_streams_share_a_plan() -> None:
    calls = [Call([300 + i, 40, 700], [300 + i, 40, 700]) for i in range(2)]
    rights = [call.run()[0] for call in calls]
    streams = [CUDA.Stream() for _ in calls]
    torch.cuda.synchronize()
    for _ in range(30):
        outs = []
        for call, stream in zip(calls, streams, strict=True):
            with torch.cuda.stream(stream):
                outs.append(call.run()[0])
        torch.cuda.synchronize()
        for out, right in zip(outs, rights, strict=True):
            assert torch.equal(out, right)
