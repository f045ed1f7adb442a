"""tunefa/spec/model_layers.py: which kinds of layers a model has, and which are left out."""

from __future__ import annotations

from typing import Any

import pytest

from tunefa.errors import TunefaError
from tunefa.spec import model_layers, model_preset
from tunefa.spec.workload import Workload

SMALL: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def read(**keys: Any) -> model_layers.Model:
    return model_layers.read("mine", {**SMALL, **keys}, "mine.json")


def found(model: model_layers.Model) -> dict[str, int]:
    """The workloads of a model at 8,192 tokens, and how many layers have each."""
    return {str(kind.workload({"seqlen_q": 8192})): kind.count for kind in model.kinds}


@pytest.mark.parametrize(
    ("name", "workloads"),
    [
        ("llama3.1-405b", {"h128_kv8_d128": 126}),
        ("gemma2-9b", {"h16_kv8_d256_w4096_softcap": 21, "h16_kv8_d256_softcap": 21}),
        ("gemma3-27b", {"h32_kv16_d128_w1024": 52, "h32_kv16_d128": 10}),
        ("mistral-7b-v0.1", {"h32_kv8_d128_w4096": 32}),
        ("llama4-scout", {"h40_kv8_d128": 12}),
        ("deepseek-v3", {"h128_kv128_d192_dv128": 61}),
        ("phi3-mini", {"h32_kv32_d96_w2047": 32}),
        ("qwen3-next-80b-a3b", {"h16_kv2_d256": 12}),
        ("gpt-oss-120b", {}),
        ("deepseek-v3.2", {}),
    ],
)
def test_a_model_is_the_workloads_of_its_layers(name: str, workloads: dict[str, int]) -> None:
    expected = {str(Workload.parse(f"q8192_{text}")): n for text, n in workloads.items()}
    assert found(model_preset.load(name)) == expected


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("llama4-maverick", ["attention in chunks of 8,192 keys (36 of 48 layers): tunefa's"]),
        (
            "deepseek-r1",
            ["latent attention, decode with absorbed weights (61 of 61 layers): "],
        ),
        (
            "gpt-oss-20b",
            [
                "sliding window of 128 keys with attention sinks (12 of 24 layers): ",
                "global attention with attention sinks (12 of 24 layers): ",
            ],
        ),
        (
            "deepseek-v3.2",
            ["global attention, of which an index chooses the keys (61 of 61 lay"],
        ),
        ("qwen3.5-397b-a17b", ["linear attention (45 of 60 layers): it has no softmax"]),
    ],
)
def test_layers_that_cannot_be_expressed_are_named(name: str, says: list[str]) -> None:
    model = model_preset.load(name)
    lines = [f"{model.share(part)}: {part.why}" for part in model.left_out]
    assert len(lines) == len(says)
    assert all(line.startswith(start) for line, start in zip(lines, says, strict=True))


def test_a_reason_says_what_can_be_done_instead() -> None:
    window, _ = model_preset.load("gpt-oss-20b").left_out
    assert "--heads 64 --kv-heads 8 --head-dim 64 --window 128" in window.why
    assert "over a cache they can: --decode" in window.why
    (decode,) = model_preset.load("deepseek-v3").left_out
    assert "add --decode --page-size 64 and --seqlen-k" in decode.why


def test_layers_over_a_cache_may_be_others() -> None:
    over_cache = {"op": "decode", "seqlen_q": 1, "seqlen_k": 8192, "batch": 16, "page_size": 64}
    deepseek = model_preset.load("deepseek-v3").of_op("decode")
    (absorbed,), left_out = deepseek.kinds, deepseek.left_out
    latent = Workload.parse("decode_b16_h128_k8192_d576_dv512_page64_mla")
    assert absorbed.workload(over_cache) == latent and absorbed.has(latent) and not left_out
    sinks = model_preset.load("gpt-oss-20b").of_op("decode")
    found = [kind.workload(over_cache) for kind in sinks.kinds]
    assert all(each.sinks for each in found) and not sinks.left_out
    assert {each.window_left for each in found} == {127, None}
    without = Workload.parse("decode_b16_h64_kv8_k8192_d64_page64")
    assert not any(kind.has(without) for kind in sinks.kinds)
    gemma = model_preset.load("gemma2-9b")
    assert [kind.fields for kind in gemma.of_op("decode").kinds] == [k.fields for k in gemma.kinds]


def test_a_window_at_its_length_hides_no_key() -> None:
    gemma = model_preset.load("gemma2-9b")
    short = {kind.workload({"seqlen_q": 4096}) for kind in gemma.kinds}
    assert len(short) == 1 and not any(each.window_left for each in short)
    (kind, _) = gemma.kinds
    assert kind.has(Workload.parse("b4_q4k_h16_kv8_d256_softcap_fp16"))
    assert kind.has(Workload.parse("q16k_h16_kv8_d256_softcap_w4096_full"))
    assert not kind.has(Workload.parse("q8k_h16_kv8_d256_softcap"))
    assert not kind.has(Workload.parse("q8k_h16_kv8_d256_w4096"))


def test_global_layers_may_have_other_heads() -> None:
    kinds = {"layer_types": ["sliding_attention"] * 10 + ["full_attention"] * 2}
    both = read(**kinds, sliding_window=512, num_global_key_value_heads=1, global_head_dim=128)
    assert [kind.fields["heads_kv"] for kind in both.kinds] == [2, 1]
    assert [kind.fields["head_dim"] for kind in both.kinds] == [64, 128]
    gemma4 = read(**kinds, sliding_window=512, global_head_dim=512)
    assert [kind.count for kind in gemma4.kinds] == [10]
    assert gemma4.left_out[0].why.startswith("its head_dim is 512, and tunefa's kernels serve up")


def test_unknown_layers_and_types_are_said() -> None:
    odd = read(model_type="zebra", layer_types=["full_attention"] * 11 + ["\x1b[31mmamba" * 9])
    assert odd.left_out[0].count == 1 and "\x1b" not in odd.left_out[0].name
    assert "tunefa does not know this type" in odd.left_out[0].why
    assert (
        odd.note is not None
        and "the model_type 'zebra', which tunefa does not know: its attention" in odd.note
    )


def test_a_model_that_sees_both_ways_is_full() -> None:
    bert = read(model_type="bert")
    assert str(bert.kinds[0].workload({"seqlen_q": 64})).endswith("_full")
    windows = {"sliding_window": 512, "layer_types": ["sliding_attention"] * 12}
    both = read(model_type="gemma3_text", use_bidirectional_attention=True, **windows)
    assert not both.kinds and "how far it reaches on each side" in both.left_out[0].why


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"num_key_value_heads": 3}, "mine.json: heads 8 is not a multiple of heads_kv 3"),
        ({"head_dim": 8}, "mine.json: head_dim 8 is below 16"),
    ],
)
def test_a_shape_that_no_workload_has_is_told(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(TunefaError, match=says):
        read(**keys)
