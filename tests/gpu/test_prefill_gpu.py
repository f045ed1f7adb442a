"""Packed queries over pages, on the device: random problems, and what serving asks of it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pytest
import torch

import tunefa
from tests.support.gpu_kernels import judge_random_configs
from tests.support.paged_gpu_calls import (
    DIM,
    HEADS,
    HEADS_KV,
    PADDING,
    Lengths,
    check,
    is_gathered,
    paged,
    run,
)
from tests.support.random_problems import check_random
from tunefa.measure.check import softcap
from tunefa.measure.gate import Gate
from tunefa.runtime import gathered, process
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu
CASES = 300
CONFIGS = 12
"""Random configs of a workload; a binary takes seconds to compile."""
CALLS = 80
"""The number of the random problems that run through the public function, each way."""
RAGGED: Lengths = (
    (64, 64), (0, 9), (1, 700), (300, 300), (7, 0), (129, 1000), (0, 0), (50, 20), (1, 1),
    (16, 2000),
)  # fmt: skip


def workloads() -> Iterator[Workload]:
    """Always the same ones: all masks, pages, groups and lengths that a call may have."""
    chance = random.Random(0)
    for _ in range(CASES):
        group, heads_kv = chance.choice([1, 2, 3, 4, 7, 8, 16]), chance.randint(1, 3)
        head_dim = chance.choice([64, 128, 128, 128, 192, 256, 80, 72])
        causal, seqlen_q = chance.random() < 0.7, chance.choice([1, 5, 40, 130, 700])
        yield Workload(
            op="prefill",
            batch=chance.choice([1, 2, 5, 17]),
            heads=heads_kv * group,
            heads_kv=heads_kv,
            seqlen_q=seqlen_q,
            seqlen_k=chance.randint(1, chance.choice([40, 700, 3000])),
            head_dim=head_dim,
            head_dim_v=head_dim if chance.random() < 0.9 else 64,
            dtype=chance.choice(["bf16", "bf16", "fp16"]),
            causal=causal,
            window_left=chance.choice([None, None, None, 50, 500]),
            window_right=None if causal else chance.choice([None, 1, 90]),
            softcap=chance.random() < 0.1,
            sinks=chance.random() < 0.2,
            e4m3cache=chance.random() < 0.15,
            page_size=chance.choice([1, 16, 32, 48, 64, 64, 128, 256]),
            varlen=chance.random() < 0.8,
        )


@pytest.mark.parametrize(
    "name", [name for name in kernels.names() if kernels.load(name).op == "prefill"]
)
def test_random_problems_are_right(name: str) -> None:
    check_random(kernels.load(name), workloads())


@pytest.mark.parametrize(
    "text",
    [
        "prefill_b2_h8_kv2_q512_k2048_d128_bf16_page64",
        "prefill_b2_h8_kv2_q512_k2048_d128_bf16_page16",
        "prefill_b2_h6_kv2_q512_k2048_d64_fp16_full_w100_a30_page128_sinks",
        "prefill_b2_h4_q512_k2048_d256_bf16_page256_softcap",
        "prefill_b2_h8_kv2_q512_k2048_d128_bf16_page64_e4m3cache",
    ],
)
def test_random_configs_are_right(text: str) -> None:
    judge_random_configs(Workload.parse(text), CONFIGS)


@pytest.fixture(params=["pages", "gathered"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Whether calls read pages, or run on copies of their keys, whatever pays."""
    if request.param == "gathered" and torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("keys are gathered on sm90 alone")
    least = 0 if request.param == "gathered" else math.inf
    monkeypatch.setattr(gathered, "LEAST_ROWS", least)
    process.current()._forget_plans()
    yield request.param
    process.current()._forget_plans()


def through_the_call(workload: Workload, tensors: Sequence[Any]) -> None:
    """Computes a problem of the gate by the public function."""
    q, k, v, out, lse, seqlens, table, cu_seqlens, *more = tensors
    left, right = workload.window_left, workload.window_right
    factors = more[-2:] if workload.e4m3cache else (None, None)
    found = tunefa.flash_attention_varlen(
        q,
        k.transpose(1, 2),
        v.transpose(1, 2),
        cu_seqlens,
        max_seqlen_q=workload.seqlen_q,
        max_seqlen_k=workload.seqlen_k,
        causal=workload.causal,
        window=None if left is None and right is None else (left, right),
        softcap=softcap(workload),
        sinks=more[0] if workload.sinks else None,
        k_descale=factors[0],
        v_descale=factors[1],
        block_table=table,
        seqlens_k=seqlens,
        return_lse=True,
    )
    out.copy_(found[0])  # its rows do not follow one another, and gathered keys need that
    lse.copy_(found[1])


def test_random_problems_are_right_through_the_call(way: str) -> None:
    gate, wrong = Gate("cuda"), []
    for workload in islice(workloads(), CALLS):
        if way == "gathered" and workload.e4m3cache:
            continue  # keys times their factors are rounded, see below
        probe = gate.probe(workload)
        found = gate.compare(partial(through_the_call, workload, probe.tensors), probe)
        assert is_gathered() == (way == "gathered"), workload
        if not (found.passed and found.repeatable):
            wrong.append(found.reason)
    assert not wrong, f"{len(wrong)} of {CALLS} are wrong, first {wrong[:3]}"


def test_many_queries_are_gathered() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("keys are gathered on sm90 alone")
    for lengths, taken in (([(4096, 4096)], True), ([(700, 5000), (900, 900)], True),
                           ([(64, 4096)] * 4, False)):  # fmt: skip
        tensors = paged(lengths, 64)
        check(tensors, run(tensors, max_seqlen_q=4096))
        assert is_gathered() == taken


def test_caches_in_e4m3_are_those_times_their_factors(way: str) -> None:
    """Products of gathered keys with their factors are rounded to the dtype of the queries."""
    tensors = paged(RAGGED, 16)
    batch = len(RAGGED)
    factors = 0.5 + torch.rand(2, batch, HEADS_KV, device="cuda")
    eight = [each.to(torch.float8_e4m3fn) for each in tensors[1:3]]
    wide = [each.float() for each in eight]
    for number, (_, keys) in enumerate(RAGGED):
        own = tensors.block_table[number, : -(-keys // 16)].long()
        for cache, factor in zip(wide, factors[:, number], strict=True):
            cache[own] *= factor[:, None]
    given = {"k_descale": factors[0], "v_descale": factors[1]}
    found = run(tensors._replace(k=eight[0], v=eight[1]), **given)
    if way == "gathered":
        wide = [each.bfloat16() for each in wide]
    check(tensors._replace(k=wide[0], v=wide[1]), found)


@pytest.mark.parametrize("page_size", [1, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("more", [{}, {"window": 100}, {"causal": False}])
def test_ragged_sequences(page_size: int, more: dict[str, Any], way: str) -> None:
    tensors = paged(RAGGED, page_size)
    left = more.get("window", 0) - 1 if "window" in more else None
    causal = more.get("causal", True)
    check(tensors, run(tensors, **more), causal=causal, window_left=left)


def test_random_lengths(way: str) -> None:
    chance = random.Random(1)
    for seed in range(40):
        longest = chance.choice([3, 130, 1200])
        lengths = [
            (chance.choice([0, 1, chance.randint(0, longest)]), chance.randint(0, longest))
            for _ in range(chance.choice([1, 4, 40, 300]))
        ]
        tensors = paged(lengths, chance.choice([16, 64]), seed, most_keys=1)
        if any(queries and keys for queries, keys in lengths):
            check(tensors, run(tensors))


def test_sinks_and_strides(way: str) -> None:
    tensors = paged(RAGGED, 64)._replace(sinks=torch.randn(HEADS, device="cuda"))
    right = run(tensors)
    check(tensors, right)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors[1:3]]
    wide = torch.cat([tensors.q, torch.zeros_like(tensors.q)], dim=1)[:, :HEADS]
    for changes in ({"k": turned[0], "v": turned[1]}, {"q": wide}):
        for mine, same in zip(run(tensors._replace(**changes)), right, strict=True):
            count = int(tensors.cu_seqlens_q[-1])
            rows = (slice(count),) if mine.dim() == 3 else (slice(None), slice(count))
            assert torch.equal(mine[rows], same[rows])


def test_rows_of_no_sequence_are_not_written(way: str) -> None:
    tensors = paged(RAGGED)
    out = torch.full_like(tensors.q, 7.0)
    assert run(tensors, out=out)[0] is out
    assert bool((out[-PADDING:] == 7.0).all())


def test_chunks_have_the_rows_of_the_whole_prompt(way: str) -> None:
    """A prompt in chunks of 100 tokens sees what it sees at once."""
    tensors = paged([(450, 450)], 16)
    whole, whole_lse = run(tensors)
    for first in range(0, 450, 100):
        last = min(450, first + 100)
        ends = [
            torch.tensor(x, device="cuda", dtype=torch.int32) for x in ([0, last - first], [last])
        ]
        chunk = tensors._replace(q=tensors.q[first:last], cu_seqlens_q=ends[0], seqlens_k=ends[1])
        out, lse = run(chunk)
        torch.testing.assert_close(out, whole[first:last], atol=2e-2, rtol=2e-2)
        torch.testing.assert_close(lse, whole_lse[:, first:last], atol=1e-3, rtol=1e-3)


def test_a_graph_is_replayed_with_other_lengths_pages_and_rows(way: str) -> None:
    made = [
        [(300, 900), (17, 17), (0, 400), (1, 1)],
        [(3, 3), (500, 800), (0, 0), (40, 64)],
        [(0, 0), (0, 5), (0, 0), (700, 1024)],
    ]
    tensors = paged(made[0], most_keys=1024, rows=1000)
    out = torch.empty_like(tensors.q)
    run(tensors, out=out)  # what is captured is prepared before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, lse = run(tensors, out=out)
    for seed, lengths in enumerate(made, 1):
        other = paged(lengths, seed=seed, most_keys=1024, rows=1000)
        for mine, theirs in zip(tensors[:6], other[:6], strict=True):
            assert mine is not None and theirs is not None
            mine.copy_(theirs)
        graph.replay()
        check(tensors, (out, lse))


def test_other_lengths_make_few_plans_and_wait_for_nothing(way: str) -> None:
    first = paged([(100, 300), (50, 50)], most_keys=512)
    run(first)
    plans = len(process.current().caches.prefill_plans)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for rows in range(first.q.shape[0], 160):
            q = first.q.new_zeros(rows, HEADS, DIM)
            run(first._replace(q=q, seqlens_k=first.seqlens_k - 1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(process.current().caches.prefill_plans) == plans


def test_workloads_have_something_of_everything() -> None:
    every = list(workloads())
    assert len(every) == CASES
    for name in ("varlen", "softcap", "sinks", "causal", "e4m3cache"):
        assert {getattr(each, name) for each in every} == {True, False}
    assert all(replace(each, batch=1).is_packed for each in every)
