"""tunefa/spec/model_preset.py: every model loads, and a file that does not hold is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunefa.errors import TunefaError
from tunefa.spec import model_preset
from tunefa.spec.workload import Workload


@pytest.mark.parametrize("name", model_preset.names())
def test_every_model_is_a_workload_with_a_source(name: str) -> None:
    model = model_preset.load(name)
    assert model.name == name and model.source.startswith("https://")
    workload = Workload.of(
        heads=model.heads, heads_kv=model.heads_kv, head_dim=model.head_dim, seqlen_q=1
    )
    assert workload.group * model.heads_kv == model.heads


def test_the_figures_are_the_published_ones() -> None:
    llama = model_preset.load("llama3-8b")
    assert (llama.heads, llama.heads_kv, llama.head_dim) == (32, 8, 128)
    qwen = model_preset.load("qwen2.5-7b")  # a name with a dot in it
    assert (qwen.heads, qwen.heads_kv, qwen.head_dim) == (28, 4, 128)


def test_a_name_is_found_in_any_case_and_a_wrong_one_suggests() -> None:
    assert model_preset.load(" LLaMA3-8B ") == model_preset.load("llama3-8b")
    with pytest.raises(TunefaError, match="unknown model 'llama3-9b': did you mean llama3-8b"):
        model_preset.load("llama3-9b")
    with pytest.raises(TunefaError, match="unknown model"):
        model_preset.load("../archs/sm90")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("heads: 8\nheads_kv: 2\nhead_dim: 64\n", "key 'source' is missing"),
        ("heads: 8\nheads_kv: 3\nhead_dim: 64\nsource: x\n", "heads"),
        ("heads: 8\nheads_kv: 2\nhead_dim: 64\nsource: x\ncolour: red\n", ":5: .*'colour'"),
        ("heads: eight\nheads_kv: 2\nhead_dim: 64\nsource: x\n", ":1: "),
    ],
)
def test_a_file_that_does_not_hold_is_told(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(TunefaError, match=rf"mine\.yaml.*{says}"):
        model_preset.read(path)
