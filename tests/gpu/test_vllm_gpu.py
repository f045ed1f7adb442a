"""vLLM's attention backend on the device, with batches as vLLM describes them. vLLM need not be
there: stand-ins have its base classes, and PyTorch writes the cache in place of vLLM's kernel."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support import vllm_batches as batches
from tests.support import vllm_stand_ins
from tests.support.vllm_batches import Lengths, Sizes
from tunefa.integrations import vllm_attention as paged
from tunefa.measure.comparison import TOLERANCE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
NAME = "tunefa.integrations.vllm_backend"
SIZES = Sizes(32, 8, 128, 16)
DECODES: Lengths = ((1, 900), (1, 1), (1, 4000), (1, 16), (1, 333))
MIXED: Lengths = (*DECODES, (700, 700), (64, 1064), (1, 17), (300, 2000))
VERIFIED: Lengths = ((4, 900), (4, 4), (4, 2500))


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, module in vllm_stand_ins.packages(vllm_stand_ins.backend()).items():
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules.pop(NAME, None)
    torch.manual_seed(0)
    yield import_module(NAME)
    del sys.modules[NAME]


class Step:
    """A step of a layer: what vLLM hands to a backend, with all keys in the cache."""

    def __init__(
        self,
        lengths: Lengths,
        sizes: Sizes = SIZES,
        rows_first: bool = False,
        e4m3: bool = False,
        extra_rows: int = 0,
    ) -> None:
        dtype = torch.bfloat16
        self.described = batches.common(lengths, extra_rows, sizes, "cuda")
        self.kept = batches.texts(lengths, dtype, sizes, "cuda")
        self.layer = batches.layer(0.02, 0.05, "cuda") if e4m3 else batches.layer(device="cuda")
        self.factors = self.layer._k_scale, self.layer._v_scale
        pages = 2 + sum(-(-keys // sizes.page_size) for _, keys in lengths)
        stored = torch.uint8 if e4m3 else dtype
        self.cache = batches.empty_cache(pages, stored, rows_first, sizes, "cuda")
        batches.fill(self.cache, self.described, self.kept, self.write)
        new = batches.new_rows(self.described, self.kept)
        self.write(*new, self.cache, self.described.slot_mapping)
        rows = self.described.num_actual_tokens
        self.q = torch.randn(rows, sizes.heads, sizes.head_dim, device="cuda", dtype=dtype)
        self.out = torch.empty_like(self.q)

    def write(self, k: Tensor, v: Tensor, cache: Tensor, slots: Tensor) -> None:
        paged.write(k, v, cache, slots, self.factors)

    def run(self, backend: Any, speculated: int = 0, **named: Any) -> None:
        """Builds the batch and computes the layer, as vLLM does."""
        config = SimpleNamespace(num_speculative_tokens=speculated)
        heads, heads_kv, head_dim = self.q.shape[1], self.cache.shape[1], self.q.shape[2]
        builder = backend.TunefaBuilder(None, ["0"], config, self.q.device)
        impl = backend.TunefaImpl(heads, head_dim, head_dim**-0.5, heads_kv, **named)
        with torch.inference_mode():
            batch = builder.build(0, self.described)
            impl.forward(self.layer, self.q, self.q, self.q, self.cache, batch, self.out)

    def check(self, tolerance: float = TOLERANCE["bf16"], **mask: Any) -> None:
        """Raises AssertionError where the rows of the batch are not near fp64."""
        kept: Any = self.kept
        if self.cache.dtype == torch.uint8:
            pairs = [zip(each, self.factors, strict=True) for each in kept]
            e4m3 = torch.float8_e4m3fn
            kept = [[(x.float() / f).to(e4m3).double() * f for x, f in each] for each in pairs]
        right = batches.expected(self.q.cpu(), self.described, kept, **mask)
        off = (self.out[: len(right)].cpu().double() - right).norm()
        assert float(off / right.norm()) <= tolerance


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize(
    ("lengths", "speculated", "kernel"),
    [
        (DECODES, 0, "attention_decode"),
        (VERIFIED, 3, "attention_decode"),
        # On Hopper the keys of many queries are gathered first, and packed attention runs.
        (MIXED, 0, ("attention_prefill", "attention_fwd")),
    ],
    ids=["decodes", "verified", "mixed"],
)
def test_ragged_batches(
    backend: Any, lengths: Lengths, speculated: int, kernel: Any, rows_first: bool
) -> None:
    step = Step(lengths, rows_first=rows_first)
    step.run(backend, speculated)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel.startswith(kernel), chosen
    step.check()


@pytest.mark.parametrize("page_size", [16, 32, 48, 64, 256])
@pytest.mark.parametrize("head_dim", [16, 64, 72, 96, 128, 256])
def test_sizes(backend: Any, head_dim: int, page_size: int) -> None:
    step = Step(MIXED, Sizes(8, 2, head_dim, page_size))
    step.run(backend)
    step.check()


def test_masks(backend: Any) -> None:
    sinks = torch.randn(SIZES.heads, device="cuda", dtype=torch.bfloat16)
    for named, same in (
        ({"sliding_window": 100}, {"sides": (99, 0)}),
        ({"logits_soft_cap": 5.0}, {"softcap": 5.0}),
        ({"sinks": sinks}, {"sinks": sinks.cpu()}),
    ):
        step = Step(MIXED)
        step.run(backend, **named)
        step.check(**same)


def test_a_cache_in_e4m3(backend: Any) -> None:
    step = Step(MIXED, e4m3=True)
    step.run(backend, kv_cache_dtype="fp8")
    step.check()


@pytest.mark.parametrize("lengths", [DECODES, MIXED])
def test_nothing_waits_for_the_device(backend: Any, lengths: Lengths) -> None:
    step = Step(lengths)
    step.run(backend)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step.run(backend)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    step.check()


@pytest.mark.parametrize("queries", [1, 4])
def test_a_graph_of_decodes_is_replayed_with_others(backend: Any, queries: int) -> None:
    """Requests that fill a batch of a full graph have no keys, and rows all the same."""
    step = Step(((queries, 2000),) * 4)
    step.run(backend, queries - 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.run(backend, queries - 1)
    lengths = ((queries, 1999), (queries, queries), (queries, 70), (0, 0))
    other = Step(lengths, extra_rows=queries)
    step.cache[: len(other.cache)].copy_(other.cache)
    step.q.copy_(other.q)
    step.described.seq_lens.copy_(other.described.seq_lens)
    step.described.block_table_tensor.copy_(other.described.block_table_tensor)
    graph.replay()
    other.out = step.out
    other.check()
    assert not bool(step.out[3 * queries :].any())
