"""SGLang's attention backend on the device, with batches as SGLang describes them. SGLang need not
be there: stand-ins have its base class and its pools."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support import sglang_stand_ins
from tests.support.sglang_batches import Cache, Step
from tests.support.vllm_batches import Lengths, Sizes
from tunefa.measure.attention_inputs import E4M3
from tunefa.measure.comparison import TOLERANCE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
NAME = "tunefa.integrations.sglang_backend"
SIZES = Sizes(32, 8, 128, 16)
BF16 = Cache(torch.bfloat16, "cuda", 8192)
DECODES: Lengths = ((1, 900), (1, 1), (1, 4000), (1, 16), (1, 333))
PROMPTS: Lengths = ((700, 700), (64, 1064), (300, 2000), (1, 17), (1, 3000))
ON_PAGES = ("attention_prefill", "attention_fwd")
"""On Hopper the keys of many queries are gathered first, and packed attention runs."""
MODES: dict[str, tuple[Lengths, Any]] = {
    "DECODE": (DECODES, "attention_decode"),
    "MIXED": (PROMPTS, ON_PAGES),
}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    sys.modules.pop(NAME, None)
    found = sglang_stand_ins.loaded(monkeypatch)
    found.backend = import_module(NAME)
    torch.manual_seed(0)
    with found.get_parallel().override(attn_cp_size=1, attn_dcp_size=1):
        yield found
    del sys.modules[NAME]


def step_of(names: Any, mode: str, sizes: Sizes = SIZES, cache: Cache = BF16) -> Step:
    return Step(names, MODES[mode][0], mode, sizes, cache)


def run(names: Any, step: Step, number: int = 0, sinks: Tensor | None = None, **given: Any) -> Any:
    backend = names.backend.TunefaBackend(step.runner)
    return step.run(backend, step.layer(number, **given), sinks=sinks)


def check(out: Tensor, step: Step, **mask: Any) -> None:
    """Raises AssertionError where a result is not near fp64."""
    right = step.expected(**mask)
    assert out.shape == right.shape
    off = (out.cpu().double() - right).norm()
    assert float(off / right.norm()) <= TOLERANCE["bf16"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_batches_run_tunefas_kernels(names: Any, page_size: int, mode: str) -> None:
    step = step_of(names, mode, SIZES._replace(page_size=page_size))
    out = run(names, step)
    chosen = tunefa.last_choice()
    assert chosen is not None and chosen.kernel.startswith(MODES[mode][1]), chosen
    check(out, step)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("head_dim", [16, 64, 72, 96, 256])
def test_sizes(names: Any, head_dim: int, mode: str) -> None:
    step = step_of(names, mode, Sizes(8, 2, head_dim, 1))
    check(run(names, step), step)


@pytest.mark.parametrize("mode", MODES)
def test_masks(names: Any, mode: str) -> None:
    sinks = torch.randn(SIZES.heads, device="cuda", dtype=torch.bfloat16)
    for given, same in (
        ({"sliding_window_size": 99}, {"sides": (99, 0)}),
        ({"logit_cap": 5.0}, {"softcap": 5.0}),
        ({"sinks": sinks}, {"sinks": sinks.cpu()}),
    ):
        step = step_of(names, mode)
        check(run(names, step, **given), step, **same)


@pytest.mark.parametrize("mode", MODES)
def test_a_cache_in_e4m3(names: Any, mode: str) -> None:
    step = step_of(names, mode, cache=BF16._replace(dtype=E4M3))
    check(run(names, step), step)


@pytest.mark.parametrize("mode", MODES)
def test_layers_of_two_pools(names: Any, mode: str) -> None:
    step = step_of(names, mode, SIZES._replace(page_size=1), BF16._replace(two_pools=True))
    check(run(names, step), step)
    check(run(names, step, 1, sliding_window_size=99), step, sides=(99, 0))


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_does_not_wait_for_the_device(names: Any, mode: str) -> None:
    """Neither does the batch of requests that decode. Lengths of prompts are read on the host."""
    step = step_of(names, mode)
    backend, layer = names.backend.TunefaBackend(step.runner), step.layer()
    right = step.run(backend, layer)
    torch.cuda.set_sync_debug_mode("error")
    try:
        backend.init_forward_metadata(step.batch)
        out = backend.forward(step.q.flatten(1), None, None, layer, step.batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(out.view_as(right), right)


def test_a_graph_is_replayed_with_other_requests(names: Any) -> None:
    step = step_of(names, "DECODE", SIZES._replace(page_size=1))
    backend, layer = names.backend.TunefaBackend(step.runner), step.layer()
    k, v = step.fill(layer)
    count = len(DECODES)
    backend.init_cuda_graph_state(count + 3, count + 3)
    real = {name: getattr(step.batch, name) for name in ("seq_lens", "req_pool_indices")}
    padded = {name: torch.zeros(count + 3).to(each) for name, each in real.items()}
    padded["seq_lens"].fill_(1)
    q = torch.zeros(count + 3, SIZES.heads * SIZES.head_dim).to(step.q)
    batch = names.ForwardBatch(
        **vars(step.batch) | padded | {"out_cache_loc": None, "seq_lens_cpu": torch.ones(count + 3)}
    )
    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    backend.forward(q, None, None, layer, batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = backend.forward(q, None, None, layer, batch)
    step.runner.token_to_kv_pool.set_kv_buffer(
        layer, names.KVWriteLoc(step.batch.out_cache_loc), k, v, None, None
    )
    for name, each in real.items():
        padded[name][:count].copy_(each)
    q[:count].copy_(step.q.flatten(1))
    batch.seq_lens_cpu = torch.cat([step.batch.seq_lens_cpu, torch.ones(3).long()])
    backend.init_forward_metadata_out_graph(batch)
    graph.replay()
    check(out[:count].view_as(step.q), step)


def test_a_request_has_the_same_bits_alone(names: Any) -> None:
    step = step_of(names, "DECODE")
    backend, layer = names.backend.TunefaBackend(step.runner), step.layer()
    whole = step.run(backend, layer)
    alone = names.ForwardBatch(
        **vars(step.batch)
        | {
            "seq_lens": step.batch.seq_lens[2:3],
            "seq_lens_cpu": step.batch.seq_lens_cpu[2:3],
            "req_pool_indices": step.batch.req_pool_indices[2:3],
            "out_cache_loc": None,
        }
    )
    backend.init_forward_metadata(alone)
    found = backend.forward(step.q[2:3].flatten(1), None, None, layer, alone)
    assert torch.equal(found.view_as(whole[2:3]), whole[2:3])


def test_models_in_fp32_raise(names: Any) -> None:
    step = step_of(names, "DECODE", cache=BF16._replace(dtype=torch.float32))
    with pytest.raises(tunefa.TunefaError, match=r"does not serve models in torch\.float32"):
        names.backend.TunefaBackend(step.runner)
