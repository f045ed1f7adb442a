"""Contests of an experiment, and the sentences on contestants and points that are missing."""

from __future__ import annotations

import json
from typing import Any

from tunefa.experiments import rivals
from tunefa.measure.contest import Settings
from tunefa.spec.workload import Workload

ROWS: list[dict[str, Any]] = [
    {"workload": "a", "left_out": {"sdpa": "no kernel"}},
    {"workload": "b", "left_out": {"sdpa": "no kernel", "operators": "out of memory"}},
    {"workload": "c", "error": "too long"},
]


def test_a_contest_on_the_cpu_has_times_and_errors() -> None:
    settings = Settings(mode="eager", rounds=3, device="cpu")
    asked = Workload.parse("b1_h2_q70_k97_d32_fp32_causal")
    row = rivals.timed(asked, ("operators", "fa2"), settings)
    assert row["workload"] == str(asked)
    for name in ("tunefa", "operators"):
        low, high = row[f"{name}_quartiles_us"]
        assert 0 < low <= row[f"{name}_us"] <= high
        assert 0 < row[f"{name}_error"] <= row[f"{name}_worst_row"] < 1e-4
        assert row[f"{name}_captured"] is False
    assert list(row["left_out"]) == ["fa2"], "it has no fp32, and needs a GPU"
    assert row["ran"]["kernel"] == "pytorch" and "cpu" in row["ran"]["why"]
    assert json.loads(json.dumps(row)) == row


def test_contestants_that_are_left_out_are_named_once_for_each_reason() -> None:
    assert rivals.left_out(ROWS) == [
        "Without SDPA: a, b (no kernel).",
        "Without PyTorch operators: b (out of memory).",
    ]


def test_points_that_failed_are_named() -> None:
    assert rivals.failed(ROWS) == ["c failed: too long."]
