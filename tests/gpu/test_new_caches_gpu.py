"""Calls over caches whose size, strides, pages or batch were not seen before: results are those of
plans that are made anew, to the last bit, and those of PyTorch; also in CUDA graphs, on other
streams, with scales of their own, and for few queries of `flash_attention`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support import other_defaults
from tunefa.measure.attention_inputs import E4M3
from tunefa.runtime import few_queries
from tunefa.runtime.call import Options, Tensors
from tunefa.runtime.decode_call import CacheCall, CacheOptions, CacheTensors
from tunefa.runtime.decode_plan import Decode, PyTorchCachePlan
from tunefa.runtime.process import Runtime
from tunefa.runtime.resized_cache import ResizedCachePlan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
CUDA: Any = torch.cuda  # parts of it have no types
BF16 = torch.bfloat16
CAUSAL = CacheOptions()
CALLS = 60
MOST_KEYS = 3000


@dataclass(frozen=True)
class Calls:
    """Calls of one family, of bf16 queries."""

    heads: int = 32
    heads_kv: int = 8
    head_dim: int = 128
    rows: int = 1
    page_size: int | None = None
    e4m3: bool = False
    sinks: bool = False
    latent: bool = False
    given_out: bool = False
    options: CacheOptions = CAUSAL

    def call(self, chance: random.Random) -> tuple[CacheTensors, Tensor | None]:
        """A call with another batch, another cache, other strides and lengths each time. In a cache
        without pages NaN lies behind the lengths; table entries that no sequence needs point
        nowhere."""
        batch, keys = chance.randint(1, 20), chance.randint(self.rows, MOST_KEYS)
        lengths = [chance.randint(0, keys) for _ in range(batch)]
        q = self._tensor(batch, self.rows, self.heads, self.head_dim, chance)
        q.normal_()
        page = self.page_size
        if page is None:
            kv = [self._tensor(batch, keys, self.heads_kv, self.head_dim, chance) for _ in "kv"]
            table = None
            for each in kv:
                each.normal_()
                for number, length in enumerate(lengths):
                    self._rows(each, number)[length:] = torch.nan
        else:
            width = -(-keys // page)
            pages = [-(-length // page) for length in lengths]
            pool = sum(pages) + chance.randint(1, 9)
            kv = [self._tensor(pool, page, self.heads_kv, self.head_dim, chance) for _ in "kv"]
            wide = torch.full((batch, width + chance.choice([0, 3])), 10**6, dtype=torch.int32)
            numbers = iter(chance.sample(range(pool), sum(pages)))
            for number, count in enumerate(pages):
                wide[number, :count] = torch.tensor([next(numbers) for _ in range(count)])
            table = wide.cuda()[:, :width]
            for each in kv:
                each.normal_()
        factors: list[Tensor | None] = [None, None]
        if self.e4m3:
            kv = [self._stored(each) for each in kv]
            factors = [torch.rand(batch, self.heads_kv, device="cuda") + 0.5 for _ in "kv"]
        k, v = kv
        if self.latent:
            v = k[..., :512]
        sinks = torch.randn(self.heads, device="cuda") if self.sinks else None
        seqlens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
        tensors = CacheTensors(q, k, v, seqlens, table, sinks, *factors)
        if not self.given_out:
            return tensors, None
        return tensors, self._tensor(batch, self.rows, self.heads, v.shape[3], chance)

    def _rows(self, tensor: Tensor, number: int) -> Tensor:
        """The rows of a sequence, (keys, heads, head_dim)."""
        return tensor[number] if self.options.layout == "bshd" else tensor[number].transpose(0, 1)

    def _stored(self, tensor: Tensor) -> Tensor:
        """The same in e4m3, with the same strides."""
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=E4M3, device="cuda")
        return made.copy_(tensor)

    def _tensor(
        self, batch: int, rows: int, heads: int, columns: int, chance: random.Random
    ) -> Tensor:
        """A part of a larger tensor, or a whole one."""
        more, wider = chance.choice([0, 0, 7]), chance.choice([0, 0, 64])
        turned = self.options.layout == "bhsd"
        shape = (heads, rows + more) if turned else (rows + more, heads)
        made = torch.zeros(batch, *shape, columns + wider, device="cuda", dtype=BF16)
        made = made[:, :, :rows] if turned else made[:, :rows]
        return made[..., :columns]


FAMILIES = {
    "contiguous": Calls(),
    "contiguous, heads first": Calls(options=CacheOptions(layout="bhsd")),
    "a given output": Calls(given_out=True),
    "pages": Calls(page_size=64),
    "small pages, sinks": Calls(page_size=16, sinks=True),
    "single keys": Calls(page_size=1),
    "e4m3": Calls(e4m3=True),
    "e4m3 in pages": Calls(e4m3=True, page_size=64),
    "window and soft-cap": Calls(rows=4, options=CacheOptions(window_left=300, softcap=20.0)),
    "head_dim 80": Calls(head_dim=80),
    "latent": Calls(heads=16, heads_kv=1, head_dim=576, latent=True),
    "latent in pages": Calls(heads=16, heads_kv=1, head_dim=576, latent=True, page_size=64),
}


def run(given: CacheTensors, options: CacheOptions, out: Tensor | None, **more: Any) -> Any:
    """Calls `decode_attention` as a user does."""
    q, k, v, lengths, table, sinks, k_descale, v_descale = given
    window = None if options.window_left is None else options.window_left + 1
    attention: Any = tunefa.decode_attention
    return attention(
        *(q, k, v, lengths, table),
        window=window,
        softcap=options.softcap,
        layout=options.layout,
        sinks=sinks,
        k_descale=k_descale,
        v_descale=v_descale,
        out=out,
        **more,
    )


def made_anew(
    runtime: Runtime, given: CacheTensors, options: CacheOptions, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """(out, lse) of a plan that is prepared for this call alone."""
    plan: Any = runtime.planner.plan(Decode(CacheCall.of(given, options, None), None))
    assert not isinstance(plan, ResizedCachePlan)
    out, lse = plan.run(given, scale, None)
    return out, lse


def in_pytorch(given: CacheTensors, options: CacheOptions) -> Tensor:
    chosen: Any = None
    out: Tensor = PyTorchCachePlan(chosen, options).run(given, None, None)[0]
    return out


@pytest.mark.parametrize(
    ("name", "last"),
    [*((name, 0) for name in FAMILIES), ("contiguous", 1), ("small pages, sinks", 1)],
)
def test_results_of_other_caches_are_those_of_plans_made_anew(
    fresh: Runtime, name: str, last: int
) -> None:
    """`last`: the last CTA of a KV head combines its splits, where the kernel for sm90 runs."""
    if last:
        kernel = other_defaults.changed("attention_decode_cuda_sm90", LAST_CTA_COMBINES=1)
        fresh.planner.kernels = other_defaults.among_usable(kernel)
    calls, chance, quick = FAMILIES[name], random.Random(name), 0
    torch.manual_seed(0)
    for number in range(CALLS):
        given, out = calls.call(chance)
        found, lse = run(given, calls.options, out, return_lse=True)
        quick += isinstance(fresh._last.plan, ResizedCachePlan)
        right, right_lse = made_anew(fresh, given, calls.options)
        assert torch.equal(found, right) and torch.equal(lse, right_lse), number
        assert torch.equal(run(given, calls.options, out), right), "without lse"
        if number % 10 == 0:
            expected = in_pytorch(given, calls.options)
            torch.testing.assert_close(found.float(), expected.float(), atol=3e-2, rtol=3e-2)
    assert quick >= CALLS * 0.8


def test_each_scale_has_its_launches(fresh: Runtime) -> None:
    calls, chance = Calls(), random.Random(1)
    for _ in range(30):
        given, _ = calls.call(chance)
        for scale in (0.05, 0.3):
            out = run(given, calls.options, None, scale=scale)
            assert torch.equal(out, made_anew(fresh, given, calls.options, scale)[0])


def test_later_calls_of_a_size_have_launches_of_their_own(fresh: Runtime) -> None:
    calls, chance = Calls(page_size=64), random.Random(2)
    given = [calls.call(chance)[0] for _ in range(3)]
    right = [made_anew(fresh, each, calls.options)[0] for each in given]
    for _ in range(40):
        for each, expected in zip(given, right, strict=True):
            assert torch.equal(run(each, calls.options, None), expected)


def test_streams_and_graphs(fresh: Runtime) -> None:
    calls, chance = Calls(page_size=64), random.Random(3)
    for _ in range(3):
        run(calls.call(chance)[0], calls.options, None)
    stream = CUDA.Stream()
    for _ in range(20):
        given, _ = calls.call(chance)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out = run(given, calls.options, None)
        stream.synchronize()
        assert torch.equal(out, made_anew(fresh, given, calls.options)[0])
    given, _ = calls.call(chance)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # of a size that was not seen before
        out = run(given, calls.options, None)
    for _ in range(30):  # the shared launches serve other sizes meanwhile
        run(calls.call(chance)[0], calls.options, None)
    out.zero_()
    graph.replay()
    assert torch.equal(out, made_anew(fresh, given, calls.options)[0])


def test_growing_caches(fresh: Runtime) -> None:
    """Plans of next sizes are made before these are asked for."""
    q = torch.randn(4, 1, 32, 128, device="cuda", dtype=BF16)
    kv = torch.randn(2, 4, 1400, 8, 128, device="cuda", dtype=BF16)
    for keys in range(1000, 1300):
        lengths = torch.full((4,), keys, dtype=torch.int32, device="cuda")
        given = CacheTensors(q, kv[0, :, :keys], kv[1, :, :keys], lengths)
        out = run(given, CAUSAL, None)
        assert torch.equal(out, made_anew(fresh, given, CAUSAL)[0])
        chosen = tunefa.last_choice()
        assert chosen is not None and chosen.workload is not None
        assert chosen.workload.seqlen_k == keys


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_few_queries(fresh: Runtime, layout: str, rows: int) -> None:
    """Their lengths are beyond the cache, which kernels take for all of it."""
    options, chance, quick = Options(True, layout=layout), random.Random(layout), 0
    whole = torch.randn(3, 6, 5000, 8, 128, device="cuda", dtype=BF16)
    lengths = [*range(1024, 1060), *(chance.randint(1024, 5000) for _ in range(40))]
    for keys in lengths:
        batch = chance.randint(1, 6)
        q, k, v = whole[0, :batch, :rows], whole[1, :batch, :keys], whole[2, :batch, :keys]
        if layout == "bhsd":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        given = Tensors(q, k, v)
        out = tunefa.flash_attention(q, k, v, causal=True, layout=layout)  # type: ignore[call-overload]
        plan: Any = fresh._last.plan
        quick += isinstance(plan.over_cache, ResizedCachePlan)
        job = few_queries.job(given, options)
        slow: Any = fresh.planner.plan(job)
        full = torch.full((batch,), keys, dtype=torch.int32, device="cuda")
        right = slow.over_cache.run(CacheTensors(q, k, v, full), None, None)[0]
        assert torch.equal(out, right), keys
    assert quick >= 60


def test_ten_thousand_sizes_leave_nothing(fresh: Runtime) -> None:
    q = torch.randn(1, 1, 8, 128, device="cuda", dtype=BF16)
    kv = torch.randn(1, 10_300, 2, 128, device="cuda", dtype=BF16)
    lengths = torch.full((1,), 90, dtype=torch.int32, device="cuda")

    def calls(sizes: range) -> None:
        for keys in sizes:
            tunefa.decode_attention(q, kv[:, :keys], kv[:, :keys], lengths)
            if keys % 100 == 0:
                torch.cuda.synchronize()

    calls(range(100, 1000))
    ((_, compiler),) = fresh.planner.devices.values()
    compiled, held = len(compiler), torch.cuda.memory_allocated()
    calls(range(1000, 10_200))
    torch.cuda.synchronize()
    assert len(compiler) == compiled and len(fresh.caches.plans) <= 4096
    assert torch.cuda.memory_allocated() - held < 2**20
