"""benchmarks/llama.py: its variants compute the same, on the CPU, and the table of a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import attention

from benchmarks import llama
from benchmarks.llama_tasks import TASKS, VARIANTS, Generate, model_of, variant

SMALL = ["--device", "cpu", "--layers", "1", "--tokens", "40", "--hidden", "256", "--new", "3"]
FOUND: list[dict[str, Any]] = [
    {"task": "prefill", "variant": "cudnn", "failed": "RuntimeError: no backend"},
    {
        **{"task": "prefill", "variant": "tunefa", "ms": 100.0, "tokens_per_s": 163_840.0},
        **{"difference": 0.001, "extra_gib": 1.5, "kernels_ms": 98.0, "attention_ms": 24.5},
        **{"tunefa_ms": 24.5, "remark": "steps run as a CUDA graph"},
    },
]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setattr(sys, "argv", ["llama", *SMALL, "--rounds", "1"])
    return llama.arguments()


def test_all_variants_compute_the_same_and_failures_are_rows(given: Any) -> None:
    model = model_of(given)
    for task in TASKS:
        rows = llama.points(task, model, given)
        assert [row["variant"] for row in rows] == list(VARIANTS)
        for row in rows:
            if row["variant"] == "cudnn":
                assert "No viable backend" in row["failed"]
            else:
                assert row["difference"] < 3e-2 and row["ms"] > 0, row
    assert model.model.layers[0].self_attn.q_proj.weight.grad is None


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_ends(given: Any, name: str) -> None:
    model = model_of(given)
    with variant(name, model):
        active = attention.current_flash_attention_impl()
        assert (active == "tunefa") == (name == "activated")
        assert model.config._attn_implementation == ("tunefa" if name == "tunefa" else "sdpa")
    assert attention.current_flash_attention_impl() is None
    assert torch._C._get_flash_sdp_enabled()


def test_generation_reads_the_given_tokens(given: Any) -> None:
    """The logits of the last step are those of a forward pass over all tokens."""
    model = model_of(given)
    for name in ("sdpa", "tunefa"):
        with variant(name, model):
            task = Generate(model, given)
            task.begin()
            found = task.run()
            with torch.no_grad():
                right = model(task.ids, use_cache=False, logits_to_keep=1).logits
        assert float((found - right).norm() / right.norm()) < 3e-2


def test_the_file_and_its_table(
    given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "llama.json"
    words = ["llama", *SMALL, "--rounds", "1", "--task", "prefill", "--variant", "tunefa"]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(path)])
    llama.main()
    shown = capsys.readouterr().out.split("\n", 1)[1]
    monkeypatch.setattr(sys, "argv", ["llama", "--from", str(path)])
    llama.main()
    assert capsys.readouterr().out == shown
    assert "| prefill | tunefa |" in shown


def test_a_table() -> None:
    rows = llama.table(FOUND).splitlines()
    assert rows[2].startswith("| prefill | cudnn | RuntimeError: no backend |")
    assert rows[3] == (
        "| prefill | tunefa | 100.00 | 163,840 | 1.50 | 24.50 | 25.0% | 100.0% | 1.0e-03 |"
    )
    assert rows[-1] == "tunefa: steps run as a CUDA graph"
