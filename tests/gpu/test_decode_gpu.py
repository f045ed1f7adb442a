"""Attention over a cache, on the device: random problems, and what serving asks of it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support import other_defaults
from tests.support.random_problems import check_random
from tunefa.runtime import process
from tunefa.runtime.decode_call import CacheOptions, CacheTensors
from tunefa.runtime.decode_plan import PyTorchCachePlan
from tunefa.runtime.process import Runtime
from tunefa.spec import kernel as kernels
from tunefa.spec.workload import Workload

pytestmark = pytest.mark.gpu
CASES = 400
SHAPES = [(1, 1), (4, 1), (8, 1), (16, 1), (4, 2), (2, 5), (1, 16), (2, 16), (3, 1)]
"""Pairs of group and seqlen_q: each is another binary."""


def workloads() -> Iterator[Workload]:
    """Always the same ones: all masks, pages, groups and lengths that a call may have."""
    chance = random.Random(0)
    for _ in range(CASES):
        (group, seqlen_q), heads_kv = chance.choice(SHAPES), chance.randint(1, 3)
        head_dim = chance.choice([64, 128, 128, 192, 256, 80])
        yield Workload(
            op="decode",
            batch=chance.choice([1, 2, 5, 33, 70]),
            heads=heads_kv * group,
            heads_kv=heads_kv,
            seqlen_q=seqlen_q,
            seqlen_k=chance.randint(seqlen_q, chance.choice([40, 700, 3000])),
            head_dim=head_dim,
            head_dim_v=head_dim if chance.random() < 0.9 else 64,
            dtype=chance.choice(["bf16", "bf16", "fp16"]),
            causal=chance.random() < 0.8,
            window_left=chance.choice([None, None, None, 50]),
            softcap=chance.random() < 0.1,
            sinks=chance.random() < 0.2,
            e4m3cache=chance.random() < 0.15,
            page_size=chance.choice([None, None, 1, 16, 64, 48, 256]),
            varlen=chance.random() < 0.8,
        )


APART = ("attention_decode_mla", "attention_decode_prefix")
"""Kernels whose names begin so are in test_mla_gpu.py and test_shared_prefix_gpu.py, libraries in
test_decode_libraries_gpu.py."""


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in kernels.names()
        if (each := kernels.load(name)).op == "decode"
        and not each.is_library
        and not name.startswith(APART)
    ],
)
def test_random_problems_are_right(name: str) -> None:
    check_random(kernels.load(name), workloads())


LAST = other_defaults.changed("attention_decode_cuda_sm90", LAST_CTA_COMBINES=1)
"""The kernel where the last CTA of a KV head combines its splits."""


def test_random_problems_are_right_where_the_last_cta_combines() -> None:
    check_random(LAST, itertools.islice(workloads(), 0, None, 4))


@pytest.fixture
def last_cta(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns what makes the later calls of a test run `LAST`, where its kernel serves them."""

    def begin() -> None:
        made = Runtime()
        made.planner.kernels = other_defaults.among_usable(LAST)
        monkeypatch.setattr(process, "_RUNTIME", made)

    return begin


def cache(
    lengths: list[int], page_size: int | None = 16, seed: int = 0, room: int = 64
) -> CacheTensors:
    """Tensors of a call in bf16 with head_dim 128, 8 heads and 2 KV heads, and room for so many
    keys of a sequence; NaN lies behind the lengths, and block tables end with pages that do not
    exist."""
    torch.manual_seed(seed)
    keys = max([room, *lengths])
    kinds: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(len(lengths), 1, 8, 128, **kinds)
    kv = torch.randn(2, len(lengths), keys, 2, 128, **kinds)
    seqlens = torch.tensor(lengths, device="cuda", dtype=torch.int32)
    if page_size is None:
        for sequence, length in enumerate(lengths):
            kv[:, sequence, length:] = torch.nan
        return CacheTensors(q, kv[0], kv[1], seqlens)
    pages = -(-keys // page_size)
    table = torch.randperm(len(lengths) * pages, device="cuda").view(len(lengths), pages).int()
    pool = torch.full((2, len(lengths) * pages, page_size, 2, 128), torch.nan, **kinds)
    for sequence, length in enumerate(lengths):
        for page in range(-(-length // page_size)):
            count = min(page_size, length - page * page_size)
            here = slice(page * page_size, page * page_size + count)
            pool[:, table[sequence, page], :count] = kv[:, sequence, here]
        table[sequence, -(-length // page_size) :] = 2**30
    return CacheTensors(q, pool[0], pool[1], seqlens, table)


def of_sequences(tensors: CacheTensors, chosen: Tensor) -> CacheTensors:
    """The call of some of the sequences, in that order; pages stay where they are."""
    table = tensors.block_table
    mine = tensors._replace(q=tensors.q[chosen], seqlens=tensors.seqlens[chosen])
    if table is not None:
        return mine._replace(block_table=table[chosen])
    return mine._replace(k=tensors.k[chosen], v=tensors.v[chosen])


def run(tensors: CacheTensors, **more: Any) -> Tensor:
    q, k, v, seqlens, table, sinks, *_ = tensors
    found: Tensor = tunefa.decode_attention(q, k, v, seqlens, table, sinks=sinks, **more)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel.startswith("attention_decode"), chosen
    return found


def in_pytorch(tensors: CacheTensors) -> Tensor:
    chosen: Any = None
    wide = tensors._replace(q=tensors.q.double(), k=tensors.k.double(), v=tensors.v.double())
    return PyTorchCachePlan(chosen, CacheOptions()).run(wide, None, None)[0]


@pytest.mark.parametrize("page_size", [None, 1, 16, 256])
def test_empty_sequences_and_single_keys(page_size: int | None) -> None:
    tensors = cache([0, 1, 700, 0, 3, 2000], page_size)
    out = run(tensors)
    torch.testing.assert_close(out.double(), in_pytorch(tensors), atol=2e-2, rtol=2e-2)
    assert bool((out[0] == 0).all()) and bool((out[3] == 0).all())


@pytest.mark.parametrize("page_size", [None, 1, 16])
def test_a_sequence_has_the_same_bits_in_every_batch(
    last_cta: Callable[[], None], page_size: int | None
) -> None:
    chance = random.Random(1)
    lengths = [5000, *(chance.randint(0, 6000) for _ in range(126)), 4097]
    tensors = cache(lengths, page_size)
    together = run(tensors)
    for first, last in ((0, 1), (127, 128), (0, 3), (60, 128), (3, 5)):
        chosen = torch.arange(first, last, device="cuda")
        assert torch.equal(run(of_sequences(tensors, chosen)), together[first:last])
    turned = torch.arange(127, -1, -1, device="cuda")
    assert torch.equal(run(of_sequences(tensors, turned)), together[turned])
    last_cta()
    for first, last in ((0, 128), (0, 1), (127, 128), (60, 128), (0, 3)):
        chosen = torch.arange(first, last, device="cuda")
        for _ in range(3):  # the counts are what the call before has left
            assert torch.equal(run(of_sequences(tensors, chosen)), together[first:last])


@pytest.mark.parametrize("last", [0, 1])
def test_a_graph_is_replayed_with_other_lengths_pages_and_rows(
    last_cta: Callable[[], None], last: int
) -> None:
    if last:
        last_cta()
    tensors = cache([900, 17, 400, 1], room=1024)
    out = torch.empty_like(tensors.q)
    run(tensors, out=out)  # what is captured is prepared before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(tensors, out=out)
    for seed, lengths in enumerate(([900, 17, 400, 1], [3, 800, 0, 64], [0, 0, 0, 1024]), 1):
        for mine, theirs in zip(tensors, cache(lengths, seed=seed, room=1024), strict=True):
            if mine is not None and theirs is not None:
                mine.copy_(theirs)
        graph.replay()
        torch.testing.assert_close(out.double(), in_pytorch(tensors), atol=2e-2, rtol=2e-2)


def test_the_kernel_before_may_write_lengths_and_pages() -> None:
    """A call in a graph starts when the kernel before it ends, and reads what that has written."""
    cases = [[900, 17, 400, 1], [3, 800, 0, 64], [0, 0, 0, 1024], [900, 17, 401, 1], [1024] * 4]
    given = [cache(lengths, seed=seed, room=1024) for seed, lengths in enumerate(cases)]
    wanted = [run(each) for each in given]
    (mine, outs), zero = (given[0], [torch.empty_like(each) for each in wanted]), torch.tensor(0)
    assert mine.block_table is not None
    lengths, table = mine.seqlens.clone(), mine.block_table.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for each, out in zip(given * 3, outs * 3, strict=True):
            assert each.block_table is not None
            torch.add(each.block_table, zero, out=table)
            torch.add(each.seqlens, zero, out=lengths)
            run(each._replace(seqlens=lengths, block_table=table), out=out)
    for out in outs:
        out.fill_(torch.nan)
    graph.replay()
    assert all(map(torch.equal, outs, wanted))


def test_new_keys_are_appended_on_the_device() -> None:
    tensors = cache([30, 0, 63, 100])
    new = torch.randn(2, 4, 1, 2, 128, device="cuda", dtype=torch.bfloat16)
    assert tensors.block_table is not None
    tensors.block_table[tensors.block_table > 10**6] = 0  # pages of the new keys must exist
    tensors.block_table.copy_(torch.randperm(tensors.k.shape[0], device="cuda").view(4, -1))
    tensors = tensors._replace(k=tensors.k.nan_to_num(), v=tensors.v.nan_to_num())
    out = run(tensors, k=new[0], v=new[1])
    longer = tensors._replace(seqlens=tensors.seqlens + 1)
    torch.testing.assert_close(out.double(), in_pytorch(longer), atol=2e-2, rtol=2e-2)


def test_ten_thousand_lengths_make_one_plan() -> None:
    tensors = cache([100, 200])
    run(tensors)
    plans = len(process.current().caches.plans)
    torch.cuda.synchronize()
    held = torch.cuda.memory_allocated()
    for length in range(10_000):
        tensors.seqlens.fill_(length % 200)
        run(tensors)
    torch.cuda.synchronize()
    assert len(process.current().caches.plans) == plans
    assert torch.cuda.memory_allocated() <= held + 2**20


def test_kernels_need_no_synchronisation() -> None:
    tensors = cache([100, 200])
    run(tensors)
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(tensors)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_workloads_have_something_of_everything() -> None:
    every = list(workloads())
    assert len(every) == CASES
    for name in ("varlen", "softcap", "sinks", "causal", "e4m3cache"):
        assert {getattr(each, name) for each in every} == {True, False}
    assert all(replace(each, batch=1).op == "decode" for each in every)
