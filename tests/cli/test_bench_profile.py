"""tunefa bench profile: a real profile on the CPU, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import Run

WORKLOAD = "b1_h2_q64_d32_fp16_causal"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def test_the_trace_and_the_table(run: Run, tmp_path: Path) -> None:
    done = run("bench", "profile", "-w", WORKLOAD, "--out", str(tmp_path))
    path = tmp_path / "torch-fwd_b1_h2_kv2_q64_k64_d32_fp16_causal.json"
    assert path.is_file() and str(path) in done.stderr
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in done.stdout
    assert "https://ui.perfetto.dev" in done.stdout


def test_json(run: Run, tmp_path: Path) -> None:
    asked = ("bench", "profile", "-w", WORKLOAD, "--peers", "operators", "--json")
    (found,) = json.loads(run(*asked, "--out", str(tmp_path)).stdout)["profiles"]
    assert {row["contestant"] for row in found["rows"]} == {"tunefa", "operators"}


def test_an_option_of_the_group(run: Run, tmp_path: Path) -> None:
    done = run("bench", "-w", WORKLOAD, "--profile", "torch", "--out", str(tmp_path))
    assert "https://ui.perfetto.dev" in done.stdout
    asked = ("bench", "--profile=ncu", "-w", WORKLOAD, "--arch", "h200")
    assert "a profile needs the chip itself" in run(*asked, code=1).stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("-w", WORKLOAD, "--with", "ncu"), 1, "Nsight Compute is missing"),
        (("-w", WORKLOAD, "--with", "proton"), 1, "PyTorch sees no GPU here"),
        (("-w", WORKLOAD, "--arch", "h200"), 1, "a profile needs the chip itself"),
        (("-w", WORKLOAD, "--peers", "operators,fa9"), 1, "unknown peer 'fa9'"),
        (("-w", WORKLOAD, "--with", "nsys"), 2, "nsys"),
        ((), 2, "no workload"),
    ],
)
def test_what_is_refused(
    run: Run, words: tuple[str, ...], code: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    assert said in run("bench", "profile", *words, code=code).stderr


def test_only_forward_passes_are_profiled(run: Run) -> None:
    said = run("bench", "profile", "-w", "bwd_q64_d64", code=1).stderr
    assert "is of the op bwd: forward passes are profiled" in said
