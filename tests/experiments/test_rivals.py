"""What is said of contestants that are left out, and of points that failed."""

from __future__ import annotations

from typing import Any

from tunefa.experiments import rivals

ROWS: list[dict[str, Any]] = [
    {"workload": "a", "left_out": {"sdpa": "no kernel"}},
    {"workload": "b", "left_out": {"sdpa": "no kernel", "operators": "out of memory"}},
    {"workload": "c", "error": "too long"},
]


def test_contestants_that_are_left_out_are_named_once_for_each_reason() -> None:
    assert rivals.left_out(ROWS) == [
        "Without SDPA: a, b (no kernel).",
        "Without PyTorch operators: b (out of memory).",
    ]


def test_points_that_failed_are_named() -> None:
    assert rivals.failed(ROWS) == ["c failed: too long."]
