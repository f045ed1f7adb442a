"""examples/train_gpt.py: it learns, with the same losses for both attentions, and writes them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tree import TREE

SMALL = "--layers 2 --width 64 --heads 2 --seqlen 64 --batch 4 --steps 12 --vocabulary 32"


def test_both_attentions_learn_alike(tmp_path: Path) -> None:
    command = [sys.executable, str(TREE / "examples" / "train_gpt.py"), *SMALL.split()]
    done = subprocess.run(
        [*command, "--rate", "3e-3", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False, cwd=TREE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "train_gpt.json").read_text())
    runs = found["runs"]
    mine, theirs = (runs[name]["losses"] for name in ("tunefa", "pytorch"))
    assert len(mine) == 12 and mine[-1] < mine[0] - 0.3, "it learns"
    assert max(abs(a - b) for a, b in zip(mine, theirs, strict=True)) < 0.02
    assert "tokens/s" in done.stdout and (tmp_path / "train_gpt.png").read_bytes()[:4] == b"\x89PNG"
    scores, weights = 3.5 * 4 * 64 * 2 * (64 * 65 // 2), 2 * 12 * 64**2 + 64 * 32
    assert found["attention_share"] == pytest.approx(scores / (scores + 6 * 64 * weights))
    for run in runs.values():
        assert run["step_ms"] == pytest.approx(sum(run["block_ms"]) / len(run["block_ms"]))
        assert run["tokens_per_s"] == pytest.approx(4 * 64 / run["step_ms"] * 1e3)


def test_too_few_steps_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(TREE / "examples"))
    import train_gpt  # type: ignore[import-not-found]

    with pytest.raises(SystemExit) as ended:
        train_gpt.parsed(["--steps", "7"])
    assert ended.value.code == 2 and "--steps is 7: give 8 or more" in capsys.readouterr().err
