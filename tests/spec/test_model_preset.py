"""tunefa/spec/model_preset.py: the table of models, and what else a name can mean."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tunefa.errors import TunefaError
from tunefa.spec import model_preset
from tunefa.spec.model_layers import Model

LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 8}
KEYS = {
    *("source", "model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("hidden_size", "head_dim", "sliding_window", "sliding_window_pattern", "index_topk"),
    *("attn_logit_softcapping", "attention_chunk_size", "full_attention_interval", "kv_lora_rank"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "n_head", "n_embd", "n_layer"),
}
FORMER = {
    "gemma2-9b": (16, 8, 256),
    "gpt2": (12, 12, 64),
    "llama2-7b": (32, 32, 128),
    "llama3-70b": (64, 8, 128),
    "llama3-8b": (32, 8, 128),
    "mistral-7b": (32, 8, 128),
    "phi3-mini": (32, 32, 96),
    "qwen2.5-7b": (28, 4, 128),
    "qwen3-30b-a3b": (32, 4, 128),
}
"""The names of tunefa's first table, with heads, heads_kv and head_dim."""


def shapes(model: Model) -> set[tuple[Any, ...]]:
    fields = ("heads", "heads_kv", "head_dim")
    return {tuple(kind.fields[name] for name in fields) for kind in model.kinds}


@pytest.mark.parametrize("name", model_preset.names())
def test_every_model_has_known_keys_and_a_source(name: str) -> None:
    keys = model_preset.table()[name]
    assert keys.keys() <= KEYS, "a key of config.json that nothing reads, or a typing mistake"
    assert re.fullmatch(r"https://huggingface.co/[^/]+/[^/]+/blob/main/config.json", keys["source"])
    model = model_preset.load(name)
    assert model.name == name and model.note is None
    counted = sum(part.count for part in model.kinds)
    counted += sum(part.count for part in model.left_out)
    assert counted == model.layers * (2 if "kv_lora_rank" in keys and model.kinds else 1)
    for kind in model.kinds:
        assert kind.workload({"seqlen_q": 8192}).seqlen_k == 8192


@pytest.mark.parametrize(("name", "shape"), FORMER.items())
def test_former_names_keep_their_shapes(name: str, shape: tuple[int, int, int]) -> None:
    assert shapes(model_preset.load(name)) == {shape}


def test_the_well_known_models_are_there() -> None:
    known = " ".join(model_preset.names())
    families = "llama3- llama3.1- llama3.2- llama3.3- llama4- qwen2.5- qwen3- gemma2- gemma3- "
    families += "mistral- mixtral- deepseek-v2 deepseek-v3 deepseek-r1 gpt-oss- phi3 phi4"
    assert all(family in known for family in families.split())


def test_a_name_in_any_case_and_the_repository_mean_the_model() -> None:
    llama = model_preset.load("llama3-8b")
    assert model_preset.load(" LLaMA3-8B ") == llama
    assert model_preset.load("meta-llama/Meta-Llama-3-8B") == llama


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("llama3-9b", "did you mean llama3-8b or "),
        ("zebra", "name a config.json, or one of these\n  llama2-7b, .*, gemma3-27b\n  mistral-7b"),
        ("../archs/sm90", "there is no such file or folder, and the table has no such repository"),
        ("", "unknown model ''"),
        ("a" * 5000, "unknown model"),
        ("nul\0l", "unknown model"),
        ("gone/config.json", "gone/config.json: there is no such file"),
    ],
)
def test_a_name_that_means_nothing(name: str, says: str) -> None:
    with pytest.raises(TunefaError, match=f"(?s){says}"):
        model_preset.load(name)


def test_a_file_and_its_folder_are_the_model(tmp_path: Path) -> None:
    config = {**LLAMA, "hidden_size": 512, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        model = model_preset.load(str(path))
        assert model.name == str(path) and shapes(model) == {(8, 2, 64)}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not JSON"),
        (b"{'a': 1}", "is not JSON"),
        (b"[1, 2]", "holds no mapping"),
        (b"\xff\xfe\x00", "is not JSON"),
        (b'{"a": ' + b"[" * 100_000, "is nested too deeply|is not JSON"),
        (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b" " * ((16 << 20) + 1), "has more than 16 MiB"),
        (b'{"text_config": ' * 900 + b"{}" + b"}" * 900, "text_config"),
        (b"{}", "key 'num_hidden_layers' is missing"),
        (b'{"num_hidden_layers": 4}', "key 'num_attention_heads' is missing"),
    ],
)
def test_a_wrong_file_is_told(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(TunefaError, match=rf"config\.json.*({says})"):
        model_preset.load(str(path))


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match=r"config\.json: there is no such file"):
        model_preset.load(str(tmp_path))
    os.mkfifo(tmp_path / "config.json")  # reading it would wait for ever
    with pytest.raises(TunefaError, match=r"config\.json: is not a file"):
        model_preset.load(str(tmp_path))


def test_a_table_that_does_not_hold_is_told(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text("a-model: 7\n")
    with pytest.raises(TunefaError, match=r"models\.yaml:1: 'a-model' must be a mapping"):
        model_preset.table(path)
