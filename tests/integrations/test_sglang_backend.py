"""SGLang's backend `tunefa` beside fp64: with SGLang's own classes and pools where it is installed
(`make test-sglang`), and with stand-ins for them elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import sglang_stand_ins
from tests.support.exact_attention import exact
from tests.support.sglang_batches import PLAIN, Cache, Step
from tests.support.vllm_batches import Lengths, Sizes
from tunefa.errors import TunefaError

NAME = "tunefa.integrations.sglang_backend"
E5M2 = torch.float8_e5m2
SIZES = Sizes(4, 2, 16, 16)
DECODES: Lengths = ((1, 9), (1, 1), (1, 40), (1, 16))
PROMPTS: Lengths = ((7, 7), (20, 50), (33, 33))
MIXED: Lengths = (*PROMPTS, (1, 17), (2, 90), (1, 1))
MODES: dict[str, tuple[str, Lengths]] = {
    "decodes": ("DECODE", DECODES),
    "prompts": ("EXTEND", PROMPTS),
    "mixed": ("MIXED", MIXED),
}
MASKS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": ({}, {}),
    "window": ({"sliding_window_size": 5}, {"sides": (5, 0)}),
    "softcap": ({"logit_cap": 2.0}, {"softcap": 2.0}),
    "both": ({"sliding_window_size": 5, "logit_cap": 2.0}, {"sides": (5, 0), "softcap": 2.0}),
}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    sys.modules.pop(NAME, None)
    found = sglang_stand_ins.loaded(monkeypatch)
    found.backend = import_module(NAME)
    with found.get_parallel().override(attn_cp_size=1, attn_dcp_size=1):
        yield found
    del sys.modules[NAME]


def step_of(names: Any, mode: str, sizes: Sizes = SIZES, cache: Cache = PLAIN) -> Step:
    kind, lengths = MODES[mode]
    return Step(names, lengths, kind, sizes, cache)


def close(found: Tensor, right: Tensor) -> None:
    tolerance = 1e-6 if found.dtype == torch.float64 else 2e-2
    torch.testing.assert_close(found.double(), right, rtol=tolerance, atol=tolerance)


def test_it_is_a_backend_of_sglang(names: Any) -> None:
    made = names.backend.TunefaBackend(step_of(names, "decodes").runner)
    assert isinstance(made, names.AttentionBackend)
    assert made.get_cuda_graph_seq_len_fill_value() == 1


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("mode", MODES)
def test_a_step_of_a_layer(names: Any, mode: str, mask: str, page_size: int) -> None:
    step = step_of(names, mode, SIZES._replace(page_size=page_size))
    given, same = MASKS[mask]
    backend = names.backend.TunefaBackend(step.runner)
    close(step.run(backend, step.layer(**given)), step.expected(**same))


@pytest.mark.parametrize("mode", MODES)
def test_sinks(names: Any, mode: str) -> None:
    step = step_of(names, mode)
    sinks = torch.nn.Parameter(torch.linspace(-1, 2, SIZES.heads, dtype=torch.bfloat16))
    backend = names.backend.TunefaBackend(step.runner)
    found = step.run(backend, step.layer(), sinks=sinks)
    close(found, step.expected(sinks=sinks.detach().float()))


@pytest.mark.parametrize("mode", MODES)
def test_a_cache_in_e4m3(names: Any, mode: str) -> None:
    step = step_of(names, mode, cache=Cache(torch.float8_e4m3fn))
    close(step.run(names.backend.TunefaBackend(step.runner), step.layer()), step.expected())


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("mode", MODES)
def test_layers_of_two_pools(names: Any, mode: str, page_size: int) -> None:
    step = step_of(names, mode, SIZES._replace(page_size=page_size), Cache(two_pools=True))
    backend = names.backend.TunefaBackend(step.runner)
    close(step.run(backend, step.layer(0)), step.expected())
    close(step.run(backend, step.layer(1, sliding_window_size=5)), step.expected(sides=(5, 0)))


def test_encoders_see_to_both_sides(names: Any) -> None:
    for given, causal, sides in (
        ("ENCODER_ONLY", False, (5, 5)),
        ("DECODER_BIDIRECTIONAL", False, (5, 5)),
        ("DECODER", True, (5, 0)),
    ):
        kind = getattr(names.AttentionType, given)
        step = step_of(names, "prompts")
        layer = step.layer(attn_type=kind, sliding_window_size=5)
        found = step.run(names.backend.TunefaBackend(step.runner), layer)
        right = [exact_request(step, row, sides, causal) for row in range(len(step.lengths))]
        close(found, torch.cat(right))


def exact_request(step: Step, row: int, sides: tuple[int, int], causal: bool) -> Tensor:
    starts = step.described.query_start_loc_cpu.tolist()
    k, v = step.kept[row]
    q = step.q[starts[row] : starts[row + 1]]
    return exact(q[None], k[None], v[None], causal=causal, sides=sides, scale=0.3)[0][0]


@pytest.mark.parametrize("two_pools", [False, True])
def test_a_batch_of_a_graph(names: Any, two_pools: bool) -> None:
    """A graph reads the same tensors in each replay, whatever batch is written to them."""
    step = step_of(names, "decodes", cache=Cache(two_pools=two_pools))
    backend = names.backend.TunefaBackend(step.runner)
    backend.init_cuda_graph_state(6, 6)
    backend.init_forward_metadata_out_graph(shortest(names, len(DECODES)), in_capture=True)
    captured = backend.forward_metadata
    addresses = [captured.seqlens.data_ptr(), captured.table.data_ptr()]
    layer = step.layer(int(two_pools), sliding_window_size=5)
    k, v = step.fill(layer)
    backend.init_forward_metadata_out_graph(step.batch)
    replayed = backend.forward_metadata
    assert [replayed.seqlens.data_ptr(), replayed.table.data_ptr()] == addresses
    backend.forward_metadata = captured
    out = backend.forward(step.q.flatten(1), k, v, layer, step.batch, True)
    close(out.unflatten(1, (SIZES.heads, -1)), step.expected(sides=(5, 0)))


def shortest(names: Any, requests: int) -> Any:
    """The batch with which SGLang captures: requests of one key in the page that is nobody's."""
    ones = torch.ones(requests, dtype=torch.int64)
    return names.ForwardBatch(
        forward_mode=names.ForwardMode.DECODE,
        batch_size=requests,
        input_ids=ones,
        req_pool_indices=ones * 0,
        seq_lens=ones,
        seq_lens_cpu=ones,
        out_cache_loc=ones * 0,
        seq_lens_sum=requests,
    )


def test_graphs_of_prompts_raise(names: Any) -> None:
    step = step_of(names, "prompts")
    backend = names.backend.TunefaBackend(step.runner)
    backend.init_cuda_graph_state(6, 6)
    with pytest.raises(TunefaError, match="does not serve full CUDA graphs of prompts"):
        backend.init_forward_metadata_out_graph(step.batch)


def test_a_graph_without_its_tensors_raises(names: Any) -> None:
    step = step_of(names, "decodes")
    with pytest.raises(TunefaError, match="init_cuda_graph_state was not called"):
        names.backend.TunefaBackend(step.runner).init_forward_metadata_out_graph(step.batch)


def test_keys_that_are_there_already_are_not_written(names: Any) -> None:
    """Layers that share keys with an earlier one have none of their own."""
    step = step_of(names, "decodes")
    backend, layer = names.backend.TunefaBackend(step.runner), step.layer()
    right = step.run(backend, layer)
    found = backend.forward(step.q.flatten(1), None, None, layer, step.batch, True)
    assert torch.equal(found.unflatten(1, (SIZES.heads, -1)), right)
    again = backend.forward(step.q.flatten(1), right * 0, right * 0, layer, step.batch, False)
    assert torch.equal(again, found)


def test_rows_behind_the_requests_are_no_error(names: Any) -> None:
    step = step_of(names, "decodes")
    backend, layer = names.backend.TunefaBackend(step.runner), step.layer()
    right = step.run(backend, layer)
    longer = torch.cat([step.q, step.q[:3]]).flatten(1)
    found = backend.forward(longer, None, None, layer, step.batch, True)
    assert len(found) == len(longer)
    assert torch.equal(found[: len(right)], right.flatten(1))


def test_a_rank_without_requests(names: Any) -> None:
    step = step_of(names, "decodes")
    backend = names.backend.TunefaBackend(step.runner)
    step.batch.forward_mode = names.ForwardMode.IDLE
    backend.init_forward_metadata(step.batch)
    assert backend.forward(step.q[:0].flatten(1), None, None, step.layer(), step.batch).numel() == 0


def test_a_layer_before_its_batch_raises(names: Any) -> None:
    step = step_of(names, "decodes")
    backend = names.backend.TunefaBackend(step.runner)
    with pytest.raises(TunefaError, match="init_forward_metadata was not called"):
        backend.forward(step.q.flatten(1), None, None, step.layer(), step.batch)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"use_mla_backend": True}, r"latent attention \(MLA\)"),
        ({"spec_algorithm": SimpleNamespace(is_none=lambda: False)}, "speculative decoding"),
        ({"prefill_aware_swa": True}, "windows that keep the prompt"),
        ({"kv_cache_dtype_str": "mxfp8"}, "a cache in mxfp8"),
        ({"kv_cache_dtype": E5M2, "kv_cache_dtype_str": "fp8_e5m2"}, "a cache in fp8_e5m2"),
        ({"kv_index_translator": SimpleNamespace(is_translating=True)}, "--enable-unified-memory"),
    ],
)  # fmt: skip
def test_models_that_are_not_served_raise_by_name(
    names: Any, changed: dict[str, Any], said: str
) -> None:
    runner = step_of(names, "decodes").runner
    vars(runner).update(changed)
    with pytest.raises(TunefaError, match=f"does not serve {said}: choose another --attention"):
        names.backend.TunefaBackend(runner)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"is_encoder_decoder": True}, "models with an encoder"),
        ({"attention_chunk_size": 8192}, "chunked attention"),
        ({"head_dim": 12}, "head dimensions of 12 and 16"),
        ({"v_head_dim": 8}, "head dimensions of 16 and 8"),
        ({"head_dim": 264, "v_head_dim": 264}, "head dimensions of 264 and 264"),
    ],
)
def test_configurations_that_are_not_served_raise_by_name(
    names: Any, changed: dict[str, Any], said: str
) -> None:
    runner = step_of(names, "decodes").runner
    vars(runner.model_config).update(changed)
    with pytest.raises(TunefaError, match=f"does not serve {said}: choose another --attention"):
        names.backend.TunefaBackend(runner)


@pytest.mark.parametrize("name", ["attn_cp_size", "attn_dcp_size"])
def test_context_parallelism_raises(names: Any, name: str) -> None:
    runner = step_of(names, "decodes").runner
    error = pytest.raises(TunefaError, match="does not serve context parallelism: choose")
    with names.get_parallel().override(**{name: 2}), error:
        names.backend.TunefaBackend(runner)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"is_cross_attention": True}, "cross attention"),
        ({"use_irope": True}, "chunked attention"),
        ({"logit_cap": 3.0, "logit_capping_method": "sigmoid"}, "soft-caps by sigmoid"),
        ({"pos_encoding_mode": "ALIBI"}, "positions by ALIBI"),
        ({"v_head_dim": 8}, "head dimensions of 16 and 8"),
    ],
)
def test_layers_that_are_not_served_raise_by_name(
    names: Any, given: dict[str, Any], said: str
) -> None:
    step = step_of(names, "decodes")
    backend, layer = names.backend.TunefaBackend(step.runner), step.layer(**given)
    backend.init_forward_metadata(step.batch)
    with pytest.raises(TunefaError, match=f"does not serve {said}: choose another --attention"):
        backend.forward(step.q.flatten(1), None, None, layer, step.batch)


def test_arguments_of_other_backends_raise_unless_they_are_off(names: Any) -> None:
    step = step_of(names, "decodes")
    backend, layer = names.backend.TunefaBackend(step.runner), step.layer()
    step.run(backend, layer, return_lse=False, score_mod=None)
    for name, value in (("return_lse", True), ("score_mod", print), ("rel_bias", torch.ones(1))):
        with pytest.raises(TunefaError, match=f"does not serve {name}: choose another"):
            step.run(backend, layer, **{name: value})


def test_steps_of_speculation_raise(names: Any) -> None:
    step = step_of(names, "decodes")
    step.batch.forward_mode = names.ForwardMode.TARGET_VERIFY
    backend = names.backend.TunefaBackend(step.runner)
    with pytest.raises(TunefaError, match="does not serve steps of the kind TARGET_VERIFY"):
        backend.init_forward_metadata(step.batch)
