"""Calls with lengths that were not seen before: their results, also from several streams and in
CUDA graphs, and that nothing is compiled or kept for them."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tunefa
from tunefa.measure.gradients import Gradients
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.process import Runtime
from tunefa.runtime.resized import ResizedPlan
from tunefa.runtime.resized_gradients import ResizedGradientPlan

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


# ---------------------------------------------------------------------------------- gradients


def right_gradients(given: tuple[Tensor, ...], grad: Tensor, causal: bool) -> list[Tensor]:
    leaves = [x.detach().float().requires_grad_() for x in given]
    x, y, z = (each.transpose(1, 2) for each in leaves)
    rows, keys = x.shape[2], y.shape[2]
    mask = torch.ones(rows, keys, dtype=torch.bool, device="cuda")
    mask = mask.tril(keys - rows) if causal else mask
    out = F.scaled_dot_product_attention(x, y, z, attn_mask=mask, enable_gqa=True)
    return [*torch.autograd.grad(out.transpose(1, 2), leaves, grad.float())]


def check_gradients(given: tuple[Tensor, ...], causal: bool, scale: float = 1.0) -> None:
    leaves = [x.detach().requires_grad_() for x in given]
    out = tunefa.flash_attention(leaves[0], leaves[1], leaves[2], causal=causal)
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, leaves, grad)
    for ours, right in zip(found, right_gradients(given, grad, causal), strict=True):
        torch.testing.assert_close(ours.float(), right, atol=4e-2 * scale, rtol=4e-2)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads", HEADS)
def test_gradients_of_growing_and_random_lengths(
    fresh: Runtime, heads: tuple[int, int], causal: bool
) -> None:
    fresh.leave_out_libraries()
    q, k, v = buffers(*heads, 900)
    chance, quick = random.Random(0), 0
    lengths = [(rows, rows) for rows in range(120, 200)]
    for _ in range(60):
        keys = chance.randint(70, 900)
        lengths.append((chance.choice([keys, chance.randint(64, max(64, keys))]), keys))
    for rows, keys in lengths:
        batch = 1 + rows % 2
        check_gradients((q[:batch, :rows], k[:batch, :keys], v[:batch, :keys]), causal, 2.0)
        quick += isinstance(fresh._last_backward, ResizedGradientPlan)
        chosen = tunefa.last_choice(backward=True)
        assert chosen is not None and chosen.workload is not None
        assert (chosen.workload.seqlen_q, chosen.workload.seqlen_k) == (rows, keys)
    assert quick > 100


def test_gradients_on_several_streams_and_threads_at_once(fresh: Runtime) -> None:
    """They share launches; each stream has a workspace, which its threads use in turn."""
    fresh.leave_out_libraries()
    q, k, v = buffers(8, 8, 700)
    for rows in (300, 301, 302):
        check_gradients((q[:, :rows], k[:, :rows], v[:, :rows]), True, 2.0)
    shared, failures = CUDA.Stream(), list[BaseException]()

    def work(number: int) -> None:
        stream = shared if number < 2 else CUDA.Stream()
        try:
            with torch.cuda.stream(stream):
                stream.wait_stream(torch.cuda.default_stream())
                for rows in range(310 + number, 600, 7):
                    check_gradients((q[:, :rows], k[:, :rows], v[:, :rows]), True, 2.0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_a_captured_step_keeps_its_own_memory(fresh: Runtime) -> None:
    fresh.leave_out_libraries()
    q, k, v = buffers(8, 8, 700)
    options = Options(True)
    for rows in (300, 301, 302, 303):
        check_gradients((q[:, :rows], k[:, :rows], v[:, :rows]), True, 2.0)
    given = Tensors(q[:, :310], k[:, :310], v[:, :310])
    out, lse = tunefa.flash_attention(*given[:3], causal=True, return_lse=True)
    asked = Gradients(out, lse, torch.randn_like(out), None)
    expected = fresh.gradients(given, options._replace(deterministic=True), None, asked)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fresh.gradients(given, options._replace(deterministic=True), None, asked)
    for grad in found:
        grad.zero_()
    stream = CUDA.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):
            graph.replay()
    for rows in range(311, 340):  # on another stream, with the stream's workspace
        fresh.gradients(
            Tensors(q[:, :rows], k[:, :rows], v[:, :rows]),
            options,
            None,
            Gradients(q[:, :rows].clone(), lse[..., :1].expand(2, 8, rows), q[:, :rows], None),
        )
    torch.cuda.synchronize()
    for ours, right in zip(found, expected, strict=True):
        assert torch.equal(ours, right)


# ------------------------------------------------------------------------ memory of a stream


def test_caches_and_packed_sequences_share_a_workspace(fresh: Runtime) -> None:
    """Calls of both kinds in turn, on two streams at once, equal those that run alone."""
    torch.manual_seed(0)
    q = torch.randn(16, 1, 32, 128, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 16, 3000, 8, 128, device="cuda", dtype=torch.bfloat16)
    packed_q, packed_k, packed_v = (x.flatten(0, 1) for x in buffers(32, 8, 700, 4))
    starts = torch.arange(5, device="cuda", dtype=torch.int32) * 700

    def calls() -> list[Tensor]:
        found = []
        for keys in (900, 1700, 3000):
            lengths = torch.full((16,), keys, device="cuda", dtype=torch.int32)
            found.append(tunefa.decode_attention(q, k[:, :keys], v[:, :keys], lengths))
            given = packed_q, packed_k, packed_v, starts, starts, 700, 700
            found.append(tunefa.flash_attention_varlen(*given, causal=True))
        return found

    alone = calls()
    torch.cuda.synchronize()
    streams, found = [CUDA.Stream() for _ in range(2)], list[Tensor]()
    for _ in range(10):
        for stream in streams:
            stream.wait_stream(torch.cuda.default_stream())
            with torch.cuda.stream(stream):
                found += calls()
    torch.cuda.synchronize()
    for number, each in enumerate(found):
        assert torch.equal(each, alone[number % len(alone)]), number


def test_workspaces_are_bounded(fresh: Runtime) -> None:
    q = torch.randn(4, 1, 8, 128, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 4, 4000, 8, 128, device="cuda", dtype=torch.bfloat16)
    lengths = torch.full((4,), 4000, device="cuda", dtype=torch.int32)
    tunefa.decode_attention(q, k, v, lengths)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(40):
        with torch.cuda.stream(CUDA.Stream()):
            tunefa.decode_attention(q, k, v, lengths)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() - before <= 16 * 2**20
