"""tunefa/spec/workload_parts.py: one part of a workload's text at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tunefa.errors import TunefaError
from tunefa.spec.workload_parts import parse_part


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("bwd", "op", "bwd"),
        ("float16", "dtype", "fp16"),
        ("full", "causal", False),
        ("deterministic", "deterministic", True),
        ("batchvariant", "batchvariant", True),
        ("fast", "accuracy", "fast"),
        ("k8k", "seqlen_k", 8192),
        ("w4096", "window_left", 4095),
    ],
)
def test_a_part_sets_a_field(part: str, field: str, value: Any) -> None:
    assert parse_part(part) == (field, value)


@pytest.mark.parametrize("part", ["z4", "causall", "4"])
def test_an_unknown_part_is_named(part: str) -> None:
    with pytest.raises(TunefaError, match=f"unknown part '{part}'"):
        parse_part(part)
