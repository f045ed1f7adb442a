"""The classes that vLLM makes, with stand-ins for vLLM's base classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import vllm_batches as batches
from tests.support import vllm_stand_ins
from tests.support.vllm_batches import Lengths
from tunefa.errors import TunefaError

HEADS, HEADS_KV, HEAD_DIM, _ = batches.SMALL
NAME = "tunefa.integrations.vllm_backend"
MIXED: Lengths = ((1, 9), (1, 40), (7, 7), (20, 50))
GIVEN = (HEADS, HEAD_DIM, 0.25, HEADS_KV, None, None, "auto", None, "decoder", None)
"""Arguments of a layer, in the places in which vLLM gives them."""


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name, module in vllm_stand_ins.packages(vllm_stand_ins.backend()).items():
        monkeypatch.setitem(sys.modules, name, module)
    sys.modules.pop(NAME, None)
    yield import_module(NAME)
    del sys.modules[NAME]


def builder(backend: Any, speculated: int = 0) -> Any:
    config = SimpleNamespace(num_speculative_tokens=speculated)
    return backend.TunefaBackend.get_builder_cls()(None, ["0"], config, torch.device("cpu"))


def step(backend: Any, impl: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor, Any, Any]:
    """A step of a layer as vLLM has it: (output, q, the batch, keys and values)."""
    described = batches.common(MIXED)
    kept = batches.texts(MIXED, dtype)
    cache, layer = batches.empty_cache(20, dtype), batches.layer()
    update = impl.do_kv_cache_update
    batches.fill(cache, described, kept, lambda k, v, c, slots: update(layer, k, v, c, slots))
    k, v = batches.new_rows(described, kept)
    update(layer, k, v, cache, described.slot_mapping)
    q = torch.randn(described.num_actual_tokens, HEADS, HEAD_DIM, dtype=dtype)
    out = torch.full_like(q, 7.0)
    batch = builder(backend).build(0, described)
    with torch.inference_mode():
        assert impl.forward(layer, q, k, v, cache, batch, out) is out
    return out, q, described, kept


@pytest.mark.parametrize(
    ("places", "same"),
    [
        ({}, {}),
        ({5: 6}, {"sides": (5, 0)}),
        ({7: 3.0}, {"softcap": 3.0}),
        ({5: 6, 7: 3.0}, {"sides": (5, 0), "softcap": 3.0}),
        ({7: 0.0}, {}),
    ],
    ids=["plain", "window", "softcap", "both", "no softcap"],
)
def test_a_step_of_a_layer(backend: Any, places: dict[int, Any], same: dict[str, Any]) -> None:
    given = [places.get(place, value) for place, value in enumerate(GIVEN)]
    impl = backend.TunefaBackend.get_impl_cls()(*given)
    out, q, described, kept = step(backend, impl, torch.float64)
    right = batches.expected(q, described, kept, scale=0.25, **same)
    torch.testing.assert_close(out, right, rtol=1e-6, atol=1e-6)


def test_sinks_are_read_after_the_weights_are_loaded(backend: Any) -> None:
    sinks = torch.nn.Parameter(torch.zeros(HEADS, dtype=torch.bfloat16))
    impl = backend.TunefaImpl(*GIVEN, sinks=sinks)
    for values in (torch.tensor([1.0, -2.0, 0.5, 3.0]), torch.arange(4.0)):
        sinks.data.copy_(values)
        impl.process_weights_after_loading(torch.bfloat16)
        out, q, described, kept = step(backend, impl, torch.float32)
        right = batches.expected(q, described, kept, scale=0.25, sinks=values)
        torch.testing.assert_close(out.double(), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (4, [0.5] * HEADS, "alibi_slopes of a layer"),
        (6, "fp8_e5m2", "a cache in fp8_e5m2"),
        (6, "int8_per_token_head", "a cache in int8_per_token_head"),
        (8, "encoder_only", "attention of the type encoder_only"),
    ],
)
def test_what_is_not_served_raises_by_name(backend: Any, place: int, value: Any, said: str) -> None:
    given = list(GIVEN)
    given[place] = value
    with pytest.raises(TunefaError, match=f"{said}: choose another --attention-backend"):
        backend.TunefaImpl(*given)


def test_arguments_of_other_backends_raise_unless_they_are_off(backend: Any) -> None:
    backend.TunefaImpl(*GIVEN, use_alibi_sqrt=False, chunk_lookback=-1, block_m=None)
    for name, value in (("chunk_lookback", 0), ("use_alibi_sqrt", True), ("mask", torch.ones(2))):
        with pytest.raises(TunefaError, match=f"does not serve {name} of a layer"):
            backend.TunefaImpl(*GIVEN, **{name: value})


def test_a_run_for_memory_gives_zeros(backend: Any) -> None:
    q, kv = torch.randn(3, HEADS, HEAD_DIM), torch.randn(3, HEADS_KV, HEAD_DIM)
    out = torch.full_like(q, 7.0)
    impl = backend.TunefaImpl(*GIVEN)
    found = impl.forward(batches.layer(), q, kv, kv, torch.empty(0), None, out)
    assert found is out and not bool(out.any())


@pytest.mark.parametrize("name", ["output_scale", "output_block_scale"])
def test_quantized_output_raises(backend: Any, name: str) -> None:
    q, scale = torch.randn(3, HEADS, HEAD_DIM), {name: torch.ones(())}
    impl = backend.TunefaImpl(*GIVEN)
    with pytest.raises(TunefaError, match="does not serve quantized output"):
        impl.forward(batches.layer(), q, q, q, torch.empty(0), None, q, **scale)


def test_speculated_tokens_decode(backend: Any) -> None:
    described = batches.common(((3, 9), (3, 20)))
    assert builder(backend, speculated=2).build(0, described).decodes == 2
    assert builder(backend).build(0, described).decodes == 0


def test_what_vllm_asks(backend: Any) -> None:
    found = backend.TunefaBackend
    assert found.get_name() == "TUNEFA"
    assert found.get_impl_cls() is backend.TunefaImpl
    assert [each.base for each in found.get_supported_kernel_block_sizes()] == [16]
    assert not found.forward_includes_kv_cache_update
    assert found.supports_sink() and found.supports_sliding_window()
    assert not found.supports_device_cpu_query_lens_mismatch()
    served = [size for size in range(0, 600, 4) if found.supports_head_size(size)]
    assert served == list(range(16, 257, 8))
    support = found.get_builder_cls()._cudagraph_support
    assert support is vllm_stand_ins.AttentionCGSupport.UNIFORM_BATCH
    assert set(found.supported_dtypes) == {torch.float16, torch.bfloat16}


@pytest.mark.parametrize(
    ("capability", "served", "e4m3"),
    [((7, 5), False, False), ((8, 0), True, False), ((8, 9), True, True), ((9, 0), True, True),
     ((10, 0), True, True), ((12, 0), True, True)],
)  # fmt: skip
def test_chips(backend: Any, capability: tuple[int, int], served: bool, e4m3: bool) -> None:
    found = backend.TunefaBackend
    assert found.supports_compute_capability(capability) is served
    asked = (128, torch.bfloat16, "fp8", 16, False, False, False, False, capability)
    said = found.supports_combination(*asked)
    assert said == (None if e4m3 else "a cache in fp8 needs compute capability 8.9 or newer")
    assert found.supports_combination(*asked[:2], "auto", *asked[3:]) is None
