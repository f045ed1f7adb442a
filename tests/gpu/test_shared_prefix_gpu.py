"""Prefixes that sequences share, on the device: random problems against fp64, and what serving asks
of `shared_prefix`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.gpu_kernels import seen_target
from tests.support.prefix_calls import Problem, expected, tensors
from tests.support.random_problems import check_random, compile_all
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu
KERNEL = "attention_decode_prefix_triton"
WORKLOADS, PROBLEMS = 48, 60
KINDS: list[dict[str, Any]] = [
    {"group": 4, "head_dim": 128, "head_dim_v": 128, "dtype": "bf16"},
    {"group": 8, "seqlen_q": 3, "head_dim": 64, "head_dim_v": 64, "page_size": 64},
    {"group": 1, "head_dim": 256, "head_dim_v": 256, "sinks": True},
    {"group": 2, "seqlen_q": 16, "head_dim": 128, "head_dim_v": 128, "heads_kv": 8},
    {"group": 16, "head_dim": 80, "head_dim_v": 80, "softcap": True, "page_size": 48},
]
"""The properties that binaries depend on: problems of a kind share theirs."""


def workloads() -> Iterator[Workload]:
    """Always the same ones, of few binaries: compiling takes longer than all launches."""
    chance = random.Random(0)
    for number in range(WORKLOADS):
        group, seqlen_q, head_dim, page_size = chance.choice(
            [(1, 1, 128, 16), (4, 1, 128, 64), (8, 2, 64, 16), (5, 16, 256, 32), (3, 7, 80, 1)]
        )
        heads_kv = chance.randint(1, 8)
        yield Workload(
            op="decode",
            batch=chance.choice([1, 2, 5, 33]),
            heads=heads_kv * group,
            heads_kv=heads_kv,
            seqlen_q=seqlen_q,
            seqlen_k=chance.randint(seqlen_q, chance.choice([40, 700, 3000])),
            head_dim=head_dim,
            head_dim_v=head_dim,
            dtype="fp16" if seqlen_q == 16 else "bf16",
            causal=number % 8 > 0,
            sinks=group == 3,
            page_size=page_size,
            varlen=chance.random() < 0.6,
            prefix=True,
        )


def problems() -> Iterator[Problem]:
    """Random lengths and shared pages, of which the first ones are special."""
    chance = random.Random(1)
    for number in range(PROBLEMS):
        kind = KINDS[number % len(KINDS)]
        page, columns = kind.get("page_size", 16), chance.randint(1, 60)
        most = page * columns
        shared = chance.choice([0, columns, chance.randint(0, columns)])
        least = chance.choice([0, shared * page, shared * page + 20, most])
        lengths = [chance.randint(min(least, most), most) for _ in range(chance.randint(1, 40))]
        if chance.random() < 0.5:
            lengths += [0, -3, most + 100, 1][: chance.choice([1, 2, 3, 3, 4])]
        chance.shuffle(lengths)
        yield Problem(lengths, shared, columns, **kind)


def call(problem: Problem, seed: int = 0) -> dict[str, Any]:
    return {**tensors(problem, "cuda", seed), "softcap": 20.0 if problem.softcap else None}


def run(given: dict[str, Any], **more: Any) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = tunefa.decode_attention(
        **given, shared_prefix=True, return_lse=True, **more
    )
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel == KERNEL, chosen
    return found


def compare(problem: Problem, given: dict[str, Any], out: Tensor, lse: Tensor) -> None:
    right, right_lse = expected(problem, given, given["softcap"])
    empty = right_lse == -torch.inf
    assert torch.equal(lse == -torch.inf, empty) and not out.transpose(1, 2)[empty].any()
    torch.testing.assert_close(lse[~empty].double(), right_lse[~empty], atol=1e-3, rtol=1e-4)
    off = (out.double() - right).norm(dim=-1) / right.norm(dim=-1).clamp_min(1e-2)
    assert float(off.max()) < (1e-2 if problem.dtype == "bf16" else 2e-3), problem


def test_random_workloads_are_right() -> None:
    """Each row against fp64 with NaN behind lengths, in two launches with the same bits."""
    check_random(kernels.load(KERNEL), workloads())


def test_random_lengths_and_tables_are_right() -> None:
    target, kernel = seen_target(), kernels.load(KERNEL)
    every = list(problems())
    assert {each.prefix_pages > 0 for each in every} == {True, False}
    usual = [Workload.parse(replace_keys(problem)) for problem in every[: len(KINDS)]]
    compile_all([Case(kernel, workload, target) for workload in usual])
    for problem in every:
        given = call(problem)
        compare(problem, given, *run(given))


def replace_keys(problem: Problem) -> str:
    """The word of the workload that the config of a call is looked up for."""
    return str(replace(Workload.parse(problem.text), batch=16, seqlen_k=8192))


def test_a_graph_is_replayed_with_other_tables_and_lengths() -> None:
    """Also where no page is shared, and where the captured call has none."""
    kind = KINDS[0]
    cases = [
        Problem([200, 900, 17, 400], 0, 64, **kind),
        Problem([900, 800, 700, 640], 40, 64, **kind),
        Problem([1024] * 4, 64, 64, **kind),
        Problem([0, 900, 0, 300], 9, 64, **kind),
        Problem([0] * 4, 9, 64, **kind),
        Problem([1, 2, 3, 1024], 9, 64, **kind),
    ]
    given = call(cases[0])
    out = torch.empty_like(given["q"])
    run(given, out=out)  # what is captured is prepared before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, lse = run(given, out=out)
    for seed, problem in enumerate(cases):
        for name, tensor in call(problem, seed).items():
            if tensor is not None:
                given[name].copy_(tensor)
        for _ in range(2):
            out.fill_(torch.nan)
            graph.replay()
            compare(problem, given, out, lse)


def test_it_needs_no_synchronisation() -> None:
    given = call(Problem([300, 400], 10, 30, **KINDS[0]))
    run(given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_two_streams_do_not_disturb_each_other() -> None:
    """Each call has its own counter of tiles."""
    problem = Problem([2000, 1900, 1990], 110, 128, **KINDS[0])
    first, second = call(problem, 1), call(problem, 2)
    alone = run(first)[0], run(second)[0]
    streams: list[Any] = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    found: list[list[Tensor]] = [[], []]
    for _ in range(50):
        for stream, given, outs in zip(streams, (first, second), found, strict=True):
            with torch.cuda.stream(stream):
                outs.append(run(given)[0])
    torch.cuda.synchronize()
    for outs, right in zip(found, alone, strict=True):
        assert all(torch.equal(out, right) for out in outs)


def test_a_compiled_call_is_right() -> None:
    problem = Problem([300, 411, 320], 15, 30, **KINDS[0])
    given = call(problem)
    compiled: Any = torch.compile(tunefa.decode_attention, fullgraph=True)
    compare(problem, given, *compiled(**given, shared_prefix=True, return_lse=True))
