"""tunefa/cli/reports/learning.py: the report of what was learned."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunefa.cli.reports import learning
from tunefa.costmodel.lesson import Lesson
from tunefa.costmodel.training_rows import TrainingRows

MODEL: Any = SimpleNamespace(id="0123abcd")
KEPT = Lesson("a_kernel", "sm90", ("NVIDIA H200",), 5, 4, 1200, 7, 0.1, 0.05, MODEL)
WORSE = Lesson("b_kernel", "sm80", ("A", "B"), 3, 3, 90, 0, 0.04, 0.06, why_not="it is worse")
TOO_FEW = Lesson("c_kernel", "sm90", ("NVIDIA H200",), 1, 1, 30, 0, why_not="too few")
LESSONS = (KEPT, WORSE, TOO_FEW)
ROWS = TrainingRows((), {"nothing was measured": 1, "the source has changed": 1234})


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_each_kernel_has_a_row_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    learning.show(LESSONS, ROWS, {("a_kernel", "sm90"): Path("/data/a.npz")})
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1:3] == ["a_kernel 5 1,200 10.5% 5.1%", "sm90: NVIDIA H200"]
    assert lines[3:5] == ["b_kernel 3 90 4.1% 6.2%", "sm80: A, B"]
    assert lines[5:7] == ["c_kernel 1 30 - -", "sm90: NVIDIA H200"]
    assert "7 configs failed and had no time." in lines
    assert "Left out 1 trial: nothing was measured." in lines
    assert "Left out 1,234 trials: the source has changed." in lines
    assert lines[-3:] == [
        "a_kernel, sm90: written to /data/a.npz",
        "b_kernel, sm80: not kept: it is worse",
        "c_kernel, sm90: not kept: too few",
    ]


def test_a_model_that_is_not_written_would_be_kept(capsys: pytest.CaptureFixture[str]) -> None:
    learning.show([KEPT], ROWS, {})
    assert capsys.readouterr().out.endswith("a_kernel, sm90: would be kept\n")


def test_the_data_says_the_same() -> None:
    data = learning.to_data(LESSONS, ROWS, {("a_kernel", "sm90"): Path("/data/a.npz")})
    first, second, third = json.loads(json.dumps(data))["lessons"]
    assert first["model"] == "0123abcd" and first["file"] == "/data/a.npz" and first["better"]
    assert (second["error_before"], second["error_after"]) == (0.04, 0.06)
    assert second["file"] is second["model"] is None and not second["better"]
    assert third["error_before"] is None and third["why_not"] == "too few"
    assert data["left_out"]["the source has changed"] == 1234


def test_what_is_forgotten_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    learning.forgotten([Path("/data/a.npz")], removed=False, as_json=False)
    learning.forgotten([Path("/data/a.npz")], removed=True, as_json=False)
    assert capsys.readouterr().out == "Would remove /data/a.npz\nRemoved /data/a.npz\n"
