"""benchmarks/first_call.py: its table, and that its workloads can be in a bundle."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import first_call
from benchmarks.first_call import MODES, TIMES, WORKLOADS
from tunefa.spec.workload import Workload


def test_its_workloads_are_of_three_ops() -> None:
    assert [Workload.parse(each).op for each in WORKLOADS.values()] == ["fwd", "bwd", "decode"]


def test_a_row_has_the_medians() -> None:
    runs: list[dict[str, Any]] = [
        {**dict.fromkeys(TIMES, 10.0 * turn), "kernel": "a", "how": "exact"} for turn in (1, 3, 2)
    ]
    said = first_call.row("forward", "bundle", runs)
    assert said.startswith("forward  bundle   imports     20.0") and said.endswith("a (exact)")


def test_a_process_that_fails_ends_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    with pytest.raises(SystemExit, match="forward with nothing: "):  # there is no device here
        first_call.started("nothing", "forward", tmp_path / "none.tunefa", tmp_path)
    assert MODES.index("nothing") < MODES.index("warm")
