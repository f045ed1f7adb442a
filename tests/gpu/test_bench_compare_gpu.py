"""tunefa bench compare on a device: the whole command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tunefa.cli import main

pytestmark = pytest.mark.gpu


def test_a_comparison_is_measured_kept_and_shown_again(tmp_path: Path) -> None:
    path = tmp_path / "compared.json"
    words = ["-w", "b2_h8_q512_d64_causal", "-w", "b2_h4_q512_d64_softcap", "--rounds", "5"]
    words += ["--peers", "sdpa,fa2,operators", "--out", str(path), "--json"]
    done = CliRunner().invoke(main, ["bench", *words])
    assert done.exit_code == 0, done.output
    data = json.loads(done.stdout)
    assert data == json.loads(path.read_text())
    causal, capped = data["rows"]
    assert causal["scores"].keys() == {"tunefa", "sdpa", "fa2", "operators"}
    assert capped["scores"].keys() == {"tunefa", "operators"}
    for row in data["rows"]:
        assert row["ran"]["kernel"] != "pytorch"
        assert row["ceilings"]["matmul_tflops"] > 1
        assert all(score["captured"] for score in row["scores"].values())
    shown = CliRunner().invoke(main, ["bench", "compare", "--from", str(path)])
    assert shown.exit_code == 0 and "over the best peer" in shown.stdout


def test_a_kernels_default_is_compared() -> None:
    words = ["-w", "b2_h8_q512_d64_causal", "--rounds", "3", "--peers", "sdpa", "--json"]
    done = CliRunner().invoke(main, ["bench", *words, "--kernel", "attention_fwd_cuda_sm80"])
    (row,) = json.loads(done.stdout)["rows"]
    assert row["ran"]["kernel"] == "attention_fwd_cuda_sm80"
    assert row["scores"].keys() == {"tunefa", "sdpa"}
