"""--model: which layers of a model a command works on, and what is said about the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.support.sample_records import measured
from tunefa.store import results as store
from tunefa.store.record import Record

WINDOW = "fwd_b1_h16_kv8_q8192_k8192_d256_bf16_causal_w4096_softcap"
GLOBAL = "fwd_b1_h16_kv8_q8192_k8192_d256_bf16_causal_softcap"
SPACE = ("space", "--arch", "sm90", "--seqlen", "8192", "--kernel", "attention_fwd_cuda_sm80")


def test_layers_that_cannot_be_expressed_are_named(run: Run) -> None:
    said = run(*SPACE, "--model", "llama4-scout").stderr.splitlines()
    assert said[0] == (
        "llama4-scout: left out, attention in chunks of 8,192 keys (36 of 48 layers): tunefa's "
        "kernels have no mask of chunks yet"
    )
    error = run(*SPACE, "--model", "gpt-oss-20b", code=1).stderr
    assert "Error: tunefa cannot express the attention of gpt-oss-20b, sliding window" in error
    assert "--heads 64 --kv-heads 8 --head-dim 64 --window 128" in error


def test_a_config_json_is_a_model(run: Run, tmp_path: Path) -> None:
    keys = {"model_type": "zebra", "num_hidden_layers": 2, "num_attention_heads": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**keys, "hidden_size": 256}))
    for name in (str(path), str(tmp_path)):
        said = run(*SPACE, "--model", name)
        assert "fwd_b1_h4_kv4_q8192_k8192_d64_bf16_causal on " in said.stdout
        assert "has the model_type 'zebra', which tunefa does not know: its" in said.stderr
    path.write_text("[]")
    error = run(*SPACE, "--model", str(path), code=1).stderr
    assert error == f"Error: {path} holds no mapping: it is not a model's config.json\n"


@pytest.fixture
def layers(home: Path) -> list[Record]:
    """A record of each kind of Gemma 2's layers, and one of another model."""
    made = [measured(each) for each in (WINDOW, GLOBAL, "q4096")]
    for record in made:
        store.default_store().add(record)
    return made


def test_lists_select_the_records_of_all_kinds(run: Run, layers: list[Record]) -> None:
    shown = json.loads(run("show", "--model", "gemma2-9b", "--json").stdout)["records"]
    assert {record["workload"] for record in shown} == {WINDOW, GLOBAL}
    shown = json.loads(run("show", "-w", "q4096", "-w", GLOBAL, "--json").stdout)["records"]
    assert {record["workload"] for record in shown} == {GLOBAL, str(layers[2].workload)}
    run("export", "best.yaml", "--model", "gemma2-9b")
    assert {str(each.workload) for each in store.read(Path("best.yaml"))} == {WINDOW, GLOBAL}
