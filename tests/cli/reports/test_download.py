"""tunefa/cli/reports/download.py: a bar a step on a terminal, a line a step elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tunefa.cli.reports import text
from tunefa.cli.reports.download import Reporter

STEPS = [("triton-ascend", 0, 54 * 10**6), ("triton-ascend", 27 * 10**6, 54 * 10**6),
         ("checking", 0, 0), ("checking", 1, 0), ("triton-ascend", 0, 54 * 10**6)]  # fmt: skip


def shown(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=90)
    monkeypatch.setattr(text, "console", lambda stderr: console)
    with Reporter() as report:
        for step in STEPS:
            report(*step)
            if terminal:
                report._bar.refresh()
    return file.getvalue()


def test_elsewhere_there_is_a_line_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(monkeypatch, terminal=False).splitlines()
    assert lines == ["triton-ascend (54 MB)", "checking", "triton-ascend (54 MB)"]


def test_on_a_terminal_there_is_how_much_of_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown(monkeypatch, terminal=True)
    assert "27.0/54.0 MB" in said and "checking" in said
