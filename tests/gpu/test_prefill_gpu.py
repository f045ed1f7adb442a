"""Packed queries over pages, on the device: random problems, and what serving asks of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.gpu_kernels import judge_random_configs
from tests.support.random_problems import check_random
from tunefa.measure.comparison import LSE_TOLERANCE, TOLERANCE
from tunefa.runtime import process
from tunefa.runtime.call import PACKED, Options
from tunefa.runtime.prefill_call import PrefillTensors
from tunefa.runtime.prefill_plan import PyTorchPrefillPlan
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu
CASES = 300
CONFIGS = 12
"""Random configs of a workload; a binary takes seconds to compile."""
NO_PAGE = 2**30
"""What the block table has behind a sequence's last page: reading that page would be a fault."""
HEADS, HEADS_KV, DIM, PADDING = 8, 2, 128, 5
Lengths = Sequence[tuple[int, int]]
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


def paged(
    lengths: Lengths, page_size: int = 16, seed: int = 0, most_keys: int = 0, rows: int = 0
) -> PrefillTensors:
    """Tensors of a call in bf16. Slots and pages of no sequence are NaN, and so are rows of q
    behind the sequences: as many as there have to be for `rows`, at least PADDING."""
    torch.manual_seed(seed)
    kinds: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    used = sum(queries for queries, _ in lengths)
    q = torch.full((max(rows, used + PADDING), HEADS, DIM), torch.nan, **kinds)
    q[:used].normal_()
    columns = -(-max(most_keys, *(keys for _, keys in lengths)) // page_size)
    pages = len(lengths) * columns
    pool = torch.full((2, pages, page_size, HEADS_KV, DIM), torch.nan, **kinds)
    table = torch.randperm(pages, device="cuda").view(len(lengths), columns).int()
    for number, (_, keys) in enumerate(lengths):
        places = torch.arange(keys, device="cuda")
        own = table[number].long()[places // page_size]
        pool[:, own, places % page_size] = torch.randn(2, keys, HEADS_KV, DIM, **kinds)
        table[number, -(-keys // page_size) :] = NO_PAGE
    starts = [*accumulate((queries for queries, _ in lengths), initial=0)]
    numbers = (starts, [keys for _, keys in lengths])
    cu_seqlens, seqlens = (torch.tensor(x, device="cuda", dtype=torch.int32) for x in numbers)
    return PrefillTensors(q, pool[0], pool[1], cu_seqlens, seqlens, table)


def run(tensors: PrefillTensors, **more: Any) -> tuple[Tensor, Tensor]:
    q, k, v, cu_seqlens, seqlens, table, sinks, *_ = tensors
    given: dict[str, Any] = {"causal": True, "max_seqlen_q": 2048, "sinks": sinks, **more}
    found: tuple[Tensor, Tensor] = tunefa.flash_attention_varlen(
        q, k, v, cu_seqlens, block_table=table, seqlens_k=seqlens, return_lse=True, **given
    )
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel.startswith("attention_prefill"), chosen
    return found


def check(tensors: PrefillTensors, found: tuple[Tensor, Tensor], **changes: Any) -> None:
    """Raises AssertionError where a row of a sequence is not near fp64."""
    asked = {"causal": True, "layout": PACKED, "max_seqlen_q": 4096, **changes}
    wide = tensors._replace(q=tensors.q.double(), k=tensors.k.double(), v=tensors.v.double())
    if tensors.sinks is not None:
        wide = wide._replace(sinks=tensors.sinks)
    chosen: Any = None
    right = PyTorchPrefillPlan(chosen, Options(**asked)).run(wide, None, None)
    count = int(tensors.cu_seqlens_q[-1])
    out, right_out = found[0][:count].double(), right[0][:count]
    lse, right_lse = found[1][:, :count].double(), right[1][:, :count]
    seen = right_lse.isfinite()
    assert torch.equal(lse.isneginf(), ~seen)
    assert float((lse - right_lse)[seen].abs().max()) <= LSE_TOLERANCE
    assert not out[~seen.T].any(), "rows that see nothing are 0"
    off, norms = (out - right_out).norm(dim=-1), right_out.norm(dim=-1)
    assert bool((off <= 4 * TOLERANCE["bf16"] * norms + 1e-12).all()), "of each row"
    assert float(off.norm() / norms.norm()) <= TOLERANCE["bf16"], "of all rows"


@pytest.mark.parametrize("page_size", [1, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("more", [{}, {"window": 100}, {"causal": False}])
def test_ragged_sequences(page_size: int, more: dict[str, Any]) -> None:
    tensors = paged(RAGGED, page_size)
    left = more.get("window", 0) - 1 if "window" in more else None
    causal = more.get("causal", True)
    check(tensors, run(tensors, **more), causal=causal, window_left=left)


def test_random_lengths() -> None:
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


def test_sinks_and_strides() -> None:
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


def test_rows_of_no_sequence_are_not_written() -> None:
    tensors = paged(RAGGED)
    out = torch.full_like(tensors.q, 7.0)
    assert run(tensors, out=out)[0] is out
    assert bool((out[-PADDING:] == 7.0).all())


def test_chunks_have_the_rows_of_the_whole_prompt() -> None:
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


def test_a_graph_is_replayed_with_other_lengths_pages_and_rows() -> None:
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


def test_other_lengths_make_few_plans_and_wait_for_nothing() -> None:
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
