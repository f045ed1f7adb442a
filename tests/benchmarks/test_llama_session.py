"""benchmarks/llama_session.py: its steps on the CPU, and its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import llama_session, point_files
from tests.support.tree import TREE

SMALL = ["--device", "cpu", "--layers", "1", "--tokens", "128", "--hidden", "512", "--new", "2"]


@pytest.mark.slow
def test_all_steps(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    command = [sys.executable, "-m", "benchmarks.llama_session", "--out", str(tmp_path)]
    more = ["--budget", "2", "--top", "1", "--", *SMALL]
    done = subprocess.run([*command, *more], cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for step in llama_session.STEPS:
        assert f"== {step}: " in done.stdout
    assert "| train | TUNEFA_ACTIVATE=1 |" in done.stdout
    traced = (tmp_path / "llama.yaml").read_text()
    for workload in ("fwd_b1_h32_kv8_q128_k128", "bwd_b1_h32_kv8_q128_k128", "decode_b1_h32_kv8"):
        assert f"workload: {workload}" in traced, traced
    assert "workload: " in (tmp_path / "found.yaml").read_text()
    rows = point_files.read(tmp_path / "variable.json")
    assert [row["variant"] for row in rows] == ["sdpa"] * 3


def test_a_step_that_fails_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.llama_session", "--out", str(tmp_path)]
    more = ["--only", "search"]  # of a trace that is not there
    done = subprocess.run([*command, *more], cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.endswith("failed: search\n")


def test_only_one_step_has_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFA_ACTIVATE", "1")
    found = {step: llama_session.environment(step, tmp_path) for step in llama_session.STEPS}
    assert [step for step, each in found.items() if "TUNEFA_ACTIVATE" in each] == ["variable"]


def test_a_table() -> None:
    plain = {
        "task": "train",
        "variant": "sdpa",
        "ms": 300.0,
        "attention_ms": 90.0,
        "tunefa_ms": 0.0,
    }
    ours = plain | {"variant": "activated", "ms": 240.0, "attention_ms": 45.0, "tunefa_ms": 44.1}
    missing = {"task": "train", "variant": "cudnn", "failed": "RuntimeError: no backend"}
    changed = plain | {"ms": 200.0, "attention_ms": 30.0, "tunefa_ms": 30.0}
    assert llama_session.summary([plain, missing, ours], [changed]).splitlines()[2:] == [
        "| train | cudnn | RuntimeError: no backend |  |  |",
        "| train | activated | 1.25 x | 2.00 x | 98.0% |",
        "| train | TUNEFA_ACTIVATE=1 | 1.50 x | 3.00 x | 100.0% |",
    ]
