"""The report of an experiment on a terminal."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from tunefa.cli.reports import experiment as reports
from tunefa.experiments.document import MEASURED, Document
from tunefa.experiments.table import Table


def test_figures_are_aligned_right_and_remarks_stand_below() -> None:
    out = Console(file=io.StringIO(), width=60)
    table = Table("A title", ("name", "us"), [["a", "1.0"], ["bb", "1,000.0"]],
                  ["A remark."], frozenset({"name"}))  # fmt: skip
    reports.print_table(table, out)
    lines = [line.rstrip() for line in out.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines == ["A title", "name       us", "a         1.0", "bb    1,000.0", "A remark."]


def test_the_question_the_origin_and_failed_points() -> None:
    rows: list[dict[str, Any]] = [
        {"workload": "b4_h8_q512_d64_fp16_causal", "tunefa_us": 10.0, "operators_us": 50.0},
        {"workload": "b4_h8_q1024_d64_fp16_causal", "error": "too long"},
    ]
    out = Console(file=io.StringIO(), width=200)
    reports.show(Document("scaling", MEASURED, "sm90", "NVIDIA H200", rows, date="2026-01-02"), out)
    said = out.file.getvalue()  # type: ignore[attr-defined]
    assert said.startswith("scaling: How much faster") and "5.00×" in said
    assert "measured on NVIDIA H200 (sm90), 2026-01-02" in said
    assert said.count("too long") == 1
