"""Tables and heat maps of tiles, from a document with known cells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.pictures import drawn
from tunefa.experiments import here, tile_grid
from tunefa.experiments.document import MEASURED, Document, Row
from tunefa.experiments.tiles import EXPERIMENT
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

COMMON: Row = {
    "workload": "b1_h32_kv8_q8192_d64_fp16_full",
    "kernel": "attention_fwd_triton",
    "sides": ["BLOCK_M", "BLOCK_N"],
    "outcome": "ok",
    "reason": "",
    "is_measured": True,
    "is_compiled": True,
    "smem_bytes": 20_480,
    "registers": 200,
    "spill_bytes": 0,
}
NONE: Row = {"time_us": None, "smem_bytes": None, "registers": None, "spill_bytes": None}


def document(time_us: float = 100.0) -> Document:
    rows = [
        _cell(64, 64, time_us=time_us, config={"num_warps": 4, "USE_TMA": 0}),
        _cell(64, 128, time_us=150.0, config={"num_warps": 8, "USE_TMA": 0}, spill_bytes=8),
        _cell(128, 64, time_us=300.0, config={"num_warps": 8, "USE_TMA": 0}, is_compiled=False),
        _cell(128, 128, **NONE, config={}, outcome="refused", reason="too much shared memory"),
    ]
    return Document("tiles", MEASURED, "sm80", "A100", rows, date="2026-01-01")


def _cell(block_m: int, block_n: int, **fields: object) -> Row:
    return {**COMMON, "block_m": block_m, "block_n": block_n, **fields}


def test_the_grid_has_times_and_letters() -> None:
    grid, _ = EXPERIMENT.tables(document())
    assert list(grid.head) == ["BLOCK_M", "BLOCK_N\n64", "BLOCK_N\n128"]
    assert grid.rows == [["64", "100.0", "150.0"], ["128", "300.0", "a"]]
    assert list(grid.remarks) == ["a: too much shared memory."]


def test_what_fits_is_sorted_and_says_what_differs() -> None:
    _, fits = EXPERIMENT.tables(document())
    assert [row[0] for row in fits.rows] == ["64 x 64", "64 x 128", "128 x 64"]
    assert fits.head[-1] == "num_warps" and [row[-1] for row in fits.rows] == ["4", "8", "8"]
    assert fits.rows[0][2] == "20,480" and fits.rows[2][2] == "≥ 20,480"
    said = " ".join(fits.remarks)
    assert "In all of them USE_TMA=0." in said and "1 of 3 cells were not compiled" in said
    assert "64 x 64 is the fastest, and 128 x 64 takes 3.0 times as long." in said


def test_a_changed_number_changes_tables_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    grid, _ = EXPERIMENT.tables(document(120.0))
    assert grid.rows[0][1] == "120.0"
    first = drawn(EXPERIMENT, document(), tmp_path / "a.png")
    other = drawn(EXPERIMENT, document(120.0), tmp_path / "b.png")
    assert not np.array_equal(first, other)


def test_nothing_fits(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    long = "a rule whose name " + "is long " * 30
    rows = [_cell(64, n, **NONE, config={}, outcome="wrong", reason=long) for n in (64, 128)]
    found = Document("tiles", MEASURED, "sm80", "A100", rows)
    grid, fits = EXPERIMENT.tables(found)
    assert not fits.rows and grid.rows[0][1:] == ["a", "a"]
    assert grid.remarks[0].startswith("a: wrong: a rule") and grid.remarks[0].endswith("….")
    drawn(EXPERIMENT, found, tmp_path / "a.png")


def test_several_workloads_have_tables_and_two_have_maps(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [
        {**row, "workload": f"b1_h8_q{length}_d64_fp16_full"}
        for length in (1024, 2048, 4096)
        for row in document().rows
    ]
    found = Document("tiles", MEASURED, "sm80", "A100", rows)
    assert len(EXPERIMENT.tables(found)) == 6
    drawn(EXPERIMENT, found, tmp_path / "a.png")


def test_measured_tiles_are_those_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunefa.measure.contest import Settings
    from tunefa.measure.measured import MeasuredInGraph

    asked = []

    def cells(case: Case, objective: object) -> list[Row]:
        asked.append((str(case.target), case.kernel.name, objective))
        return []

    monkeypatch.setattr(here, "target", lambda: Target.named("h200"))
    monkeypatch.setattr(tile_grid, "cells", cells)
    EXPERIMENT.measured(Workload.parse("q1024_d128"), Settings(mode="graph"))
    assert asked == [("NVIDIA H200 (sm90)", "attention_fwd_triton", MeasuredInGraph)]
