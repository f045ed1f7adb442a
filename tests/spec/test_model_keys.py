"""tunefa/spec/model_keys.py: what keys of a config.json mean, and what is said of wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from tunefa.errors import TunefaError
from tunefa.spec.model_keys import ModelKeys

GLOBAL, LOCAL, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


def keys(**own: Any) -> ModelKeys:
    base = {"model_type": "llama", "num_hidden_layers": 6, "num_attention_heads": 8}
    return ModelKeys({**base, **own}, "mine.json")


@pytest.mark.parametrize(
    ("own", "types"),
    [
        ({}, [GLOBAL] * 6),
        ({"sliding_window": None}, [GLOBAL] * 6),
        ({"model_type": "mistral", "sliding_window": 64}, [LOCAL] * 6),
        ({"model_type": "gemma2", "sliding_window": 64}, [LOCAL, GLOBAL] * 3),
        ({"model_type": "gemma3_text", "sliding_window": 64}, [*[LOCAL] * 5, GLOBAL]),
        ({"sliding_window": 64, "sliding_window_pattern": 3}, [LOCAL, LOCAL, GLOBAL] * 2),
        ({"layer_types": [GLOBAL, *[LOCAL] * 5]}, [GLOBAL, *[LOCAL] * 5]),
        (
            {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 2},
            [GLOBAL] * 6,
        ),
        (
            {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
            [GLOBAL, GLOBAL, *[LOCAL] * 4],
        ),
        ({"model_type": "llama4_text"}, [*[CHUNKED] * 3, GLOBAL, CHUNKED, CHUNKED]),
        (
            {"model_type": "llama4_text", "no_rope_layers": [1, 0, 1, 0, 1, 0]},
            [CHUNKED, GLOBAL] * 3,
        ),
        ({"model_type": "llama4_text", "attention_chunk_size": None}, [GLOBAL] * 6),
        ({"full_attention_interval": 2}, ["linear_attention", GLOBAL] * 3),
    ],
)
def test_which_layers_have_which_attention(own: dict[str, Any], types: list[str]) -> None:
    assert keys(**own).layer_types() == types


@pytest.mark.parametrize(
    ("own", "kv_heads", "head_dim"),
    [
        ({"hidden_size": 512}, 8, 64),
        ({"hidden_size": 512, "num_key_value_heads": None}, 8, 64),
        ({"hidden_size": 512, "head_dim": 96, "num_key_value_heads": 4}, 4, 96),
        ({"n_embd": 256, "multi_query": True}, 1, 32),
        ({"model_type": "gemma3_text", "hidden_size": 2560}, 4, 256),
        ({"model_type": "qwen3", "hidden_size": 2560}, 8, 128),
    ],
)
def test_heads_by_their_spellings_and_defaults(
    own: dict[str, Any], kv_heads: int, head_dim: int
) -> None:
    shape = keys(**own).shape(LOCAL)
    assert shape == {"heads": 8, "kv_heads": kv_heads, "head_dim": head_dim}


def test_the_language_model_of_a_multimodal_one_counts() -> None:
    text = {"model_type": "qwen3", "num_hidden_layers": 3, "num_attention_heads": 4}
    inner = ModelKeys({"thinker_config": {"text_config": text, "n_layer": 99}}, "mine.json")
    assert (inner.layers, inner.heads) == (3, 4)
    with pytest.raises(TunefaError, match=r"mine\.json: text_config: key 'num_hidden"):
        ModelKeys({"text_config": {}, "num_hidden_layers": 3}, "mine.json")


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"num_hidden_layers": -1}, "'num_hidden_layers' is -1: it must be from 1 to 10,000"),
        ({"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000: it must be from 1"),
        ({"num_attention_heads": 0}, "'num_attention_heads' is 0: it must be from 1"),
        ({"num_attention_heads": 8.0}, "'num_attention_heads' must be a whole number, not 8.0"),
        ({"num_attention_heads": True}, "must be a whole number, not True"),
        ({"num_attention_heads": [8, 4]}, r"must be a whole number, not \[8, 4\]"),
        ({"num_attention_heads": 10**30}, "is 1000000000000000000000000000000: it must be"),
        ({"head_dim": "64"}, "'head_dim' must be a whole number, not '64'"),
        ({"head_dim": -64}, "'head_dim' is -64: it must be from 1"),
        ({"hidden_size": 500}, "'hidden_size' 500 is not a multiple of the 8 heads"),
        ({}, "key 'hidden_size' is missing"),
        ({"model_type": 7}, "'model_type' must be text or null, not 7"),
        ({"attn_logit_softcapping": -50.0}, "'attn_logit_softcapping' is -50.0: it must be above"),
        ({"attn_logit_softcapping": float("nan")}, "'attn_logit_softcapping' must be"),
        ({"layer_types": GLOBAL}, "'layer_types' must be a list or null"),
        ({"layer_types": [1] * 6}, "'layer_types' must be a list of texts"),
        ({"layer_types": [GLOBAL]}, "'layer_types' has 1 entries for 6 layers"),
        ({"layer_types": [LOCAL] * 6}, "key 'sliding_window' is missing"),
        ({"model_type": "gemma2"}, "key 'sliding_window' is missing"),
        ({"sliding_window": "64"}, "'sliding_window' must be a whole number or null, not '64'"),
        ({"sliding_window": 64}, "nothing says which layers have the 'sliding_window' of 64"),
        ({"sliding_window": -64, "sliding_window_pattern": 2}, "'sliding_window' is -64"),
        ({"sliding_window": 64, "sliding_window_pattern": 0}, "'sliding_window_pattern' is 0"),
        ({"sliding_window": 64, "use_sliding_window": True}, "'max_window_layers' is missing"),
        ({"model_type": "llama4_text", "no_rope_layers": [1]}, "has 1 entries for 6 layers"),
        ({"is_encoder_decoder": True}, "an encoder with a decoder has no single kind"),
        ({"model_type": "bloom"}, "the model adds ALiBi biases"),
        ({"alibi": True}, "the model adds ALiBi biases"),
    ],
)
def test_wrong_values_are_told(own: dict[str, Any], says: str) -> None:
    with pytest.raises(TunefaError, match=rf"^mine\.json: .*{says}"):
        read = keys(**own)
        _ = read.softcap, [read.window_keys for each in read.layer_types() if each == LOCAL]
        read.shape(GLOBAL)
