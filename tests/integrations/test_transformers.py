"""tunefa as an implementation of attention for Hugging Face Transformers: tiny random models on the
CPU, beside its sdpa, or eager where a model has soft-caps or sinks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.unwritten import nan_behind
from tunefa.integrations import transformers as integration

COMPILE: Any = torch.compile
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 98,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("sdpa", {}),
    "Mistral": ("sdpa", {"sliding_window": 7}),
    "Gemma2": (
        "eager",
        {"head_dim": 16, "sliding_window": 7, "attn_logit_softcapping": 2.0},
    ),
    "GptOss": (
        "eager",
        {"head_dim": 16, "sliding_window": 7, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}
"""Each with Transformers' own implementation to compare with."""
NOT_TUNEFA = ".*scaled_dot_product_attention, not tunefa"
TOKENS = 20
LEFT = torch.arange(TOKENS) >= torch.tensor([0, 6, 13])[:, None]
RIGHT = LEFT.flip(1)
ALL = torch.ones_like(LEFT)


@pytest.fixture(scope="module")
def transformers() -> Any:
    found = pytest.importorskip("transformers", reason="transformers is not installed")
    found.logging.set_verbosity_error()
    integration.register()
    integration.register()  # changes nothing
    return found


@pytest.fixture(params=MODELS)
def both(request: pytest.FixtureRequest, transformers: Any) -> Any:
    """A model, and a function that calls another with each implementation: theirs, and tunefa."""
    theirs, more = MODELS[request.param]
    config = getattr(transformers, f"{request.param}Config")(**SIZES, **more)
    model = getattr(transformers, f"{request.param}ForCausalLM")(config).eval()
    for name, weights in model.named_parameters():
        if "sinks" in name:
            torch.nn.init.normal_(weights)
        elif weights.dim() > 1:
            weights.data.mul_(4)  # so that attention matters

    def run(function: Callable[[], Any]) -> tuple[Any, Any]:
        model.set_attn_implementation(theirs)
        right = function()
        model.set_attn_implementation("tunefa")
        with warnings.catch_warnings(), nan_behind():
            warnings.filterwarnings("error", NOT_TUNEFA)
            return right, function()

    return SimpleNamespace(model=model, run=run, ids=torch.randint(2, 90, (3, TOKENS)))


def close(right: Any, found: Any) -> None:
    torch.testing.assert_close(found, right, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("mask", [ALL, LEFT, RIGHT], ids=["all", "left", "right"])
def test_logits_and_gradients(both: Any, mask: Tensor) -> None:
    model, ids = both.model, both.ids
    # A row that is padding predicts nothing: implementations differ there.
    labels = torch.where(mask & mask.roll(1, 1), ids, -100)

    def step() -> Any:
        model.zero_grad()
        out = model(ids, attention_mask=mask.long(), labels=labels)
        out.loss.backward()
        grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        return out.logits[mask].detach(), grads

    (logits, grads), (found, found_grads) = both.run(step)
    close(logits, found)
    assert grads.keys() == found_grads.keys()
    for name, right in grads.items():
        error = float((found_grads[name] - right).norm() / right.norm().clamp_min(1e-12))
        assert error < 1e-4, f"{name} is off by {error:.1e}"


def test_packed_batches(both: Any) -> None:
    model = both.model
    ids = both.ids[:1]
    lengths = (8, 1, 4, 7)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]

    @torch.no_grad()
    def packed() -> Any:
        return model(ids, position_ids=positions, use_cache=False).logits

    right, found = both.run(packed)
    close(right, found)
    if model.config.model_type == "gpt_oss":
        return  # it does not read packed positions, whatever the attention is
    alone = torch.cat([model(part, use_cache=False).logits for part in ids.split(lengths, 1)], 1)
    close(alone, found)


def test_packed_batches_with_lengths(both: Any) -> None:
    model, ids = both.model, both.ids[:1]
    lengths = (8, 1, 4, 7)
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    model.set_attn_implementation("tunefa")
    alone = torch.cat([model(part, use_cache=False).logits for part in ids.split(lengths, 1)], 1)
    starts = torch.tensor([0, 8, 9, 13, 20])
    named = {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts}
    longest = {"max_length_q": 8, "max_length_k": 8}
    close(alone, model(ids, position_ids=positions, use_cache=False, **named, **longest).logits)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("mask", [ALL, LEFT], ids=["all", "left"])
def test_generation(both: Any, cache: str, mask: Tensor) -> None:
    def generate() -> Any:
        return both.model.generate(
            both.ids,
            attention_mask=mask.long(),
            max_new_tokens=14,
            do_sample=False,
            cache_implementation=cache,
            output_logits=True,
            return_dict_in_generate=True,
            disable_compile=True,
        )

    right, found = both.run(generate)
    assert torch.equal(found.sequences, right.sequences)
    close(torch.stack(right.logits), torch.stack(found.logits))


def test_a_static_cache_in_training_is_sliced(both: Any, transformers: Any) -> None:
    model, ids = both.model, both.ids

    def steps() -> Any:
        cache = transformers.StaticCache(config=model.config, max_cache_len=32)
        with torch.no_grad():
            model(ids[:, :9], past_key_values=cache)
        return model(ids[:, 9:10], past_key_values=cache).logits

    right, found = both.run(steps)
    close(right, found)


def test_a_compiled_model(both: Any) -> None:
    model, ids = both.model, both.ids
    if type(model).__name__.startswith("GptOss"):
        pytest.skip("its experts break the graph, whatever the attention is")
    model.set_attn_implementation("tunefa")
    right = model(ids, use_cache=False).logits
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", NOT_TUNEFA)
        close(right, COMPILE(model, backend="eager")(ids, use_cache=False).logits)
        whole = COMPILE(model, backend="eager", fullgraph=True)
        found = whole(ids, attention_mask=LEFT.long(), use_cache=False).logits[LEFT]
    close(model(ids, attention_mask=LEFT.long(), use_cache=False).logits[LEFT], found)


def test_a_mask_of_the_user_s_own(transformers: Any) -> None:
    config = transformers.LlamaConfig(**SIZES, attn_implementation="tunefa")
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(2, 90, (2, 6))
    mask = torch.rand(2, 1, 6, 6) < 0.5
    mask |= torch.eye(6, dtype=torch.bool)
    with torch.no_grad():
        with pytest.warns(UserWarning, match=r"shape \(2, 1, 6, 6\), torch.bool is computed by sc"):
            found = model(ids, attention_mask=mask).logits
        model.set_attn_implementation("sdpa")
        close(model(ids, attention_mask=mask).logits, found)


def inputs(rows: int = 4, keys: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(2, 4, rows, 8), torch.randn(2, 2, keys, 8), torch.randn(2, 2, keys, 8)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"dropout": 0.1}, r"dropout is 0.1, and tunefa has no dropout: set attention_dropout"),
        ({"cache": object()}, "cache is given, and tunefa has no paged cache"),
        ({"softcap": 3.0, "attention_mask": torch.ones(2, 1, 4, 4)}, "comes with softcap: .*eager"),
        ({"s_aux": torch.ones(4), "attention_mask": torch.ones(2, 1, 4, 4)}, "comes with sinks"),
    ],
    ids=["dropout", "cache", "softcap", "sinks"],
)
def test_what_is_not_served_is_named(named: dict[str, Any], said: str) -> None:
    call = {"attention_mask": None, **named}
    with pytest.raises(tunefa.TunefaError, match=said):
        integration.attention(torch.nn.Module(), *inputs(), **call)


def test_an_encoder_s_window_reaches_to_both_sides() -> None:
    module = torch.nn.Module()
    setattr(module, "is_causal", False)  # noqa: B010, a Module declares no such attribute
    q, k, v = inputs(9, 9)
    out, weights = integration.attention(module, q, k, v, None, sliding_window=3)
    right = tunefa.flash_attention(q, k, v, window=(2, 2), layout="bhsd").transpose(1, 2)
    torch.testing.assert_close(out, right)
    assert weights is None
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[1, 6:] = False
    padded, _ = integration.attention(module, q, k, v, valid[:, None, None], sliding_window=3)
    torch.testing.assert_close(padded[0], right[0])
    alone = tunefa.flash_attention(*(x[1:, :, :6] for x in (q, k, v)), window=(2, 2), layout="bhsd")
    torch.testing.assert_close(padded[1, :6], alone[0].transpose(0, 1))
    assert not padded[1, 6:].any()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("sinks", [False, True])
def test_what_attention_leaves_unwritten_behind_padding_is_zero(
    compiled: bool, sinks: bool
) -> None:
    """Kernels write neither outputs nor gradients of rows that belong to no sequence. A NaN there
    would reach the weights: 0 times NaN is NaN."""
    q, k, v = (x.requires_grad_() for x in inputs(9, 9))
    logits = torch.randn(4, requires_grad=sinks)
    valid = torch.arange(9) >= torch.tensor([0, 5])[:, None]
    module, grad = torch.nn.Module(), torch.randn(2, 9, 4, 8)

    def attend(q: Tensor, k: Tensor, v: Tensor, logits: Tensor) -> Tensor:
        mask = valid[:, None, None]
        return integration.attention(module, q, k, v, mask, s_aux=logits if sinks else None)[0]

    def step(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        out = function(q, k, v, logits)
        given = (q, k, v, logits)[: 3 + sinks]
        return out, *torch.autograd.grad(out, given, grad)

    right = step(attend)
    torch._dynamo.reset()
    with nan_behind():
        found = step(COMPILE(attend, backend="aot_eager", fullgraph=True) if compiled else attend)
    for one, other in zip(found, right, strict=True):
        torch.testing.assert_close(one, other)
    for one in found[1:4]:
        assert not one[1, :, :5].any()
    assert not found[0][1, :5].any()


def test_without_transformers_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(tunefa.TunefaError, match=r"transformers cannot be used.*install"):
        integration.register()
