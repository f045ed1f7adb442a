"""Profiles of single calls: PyTorch's on the CPU is a real one; ncu's are composed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tunefa.errors import TunefaError
from tunefa.experiments import profiles
from tunefa.experiments.profiles import FIGURES
from tunefa.measure import counters
from tunefa.measure.counters import Launch, Report
from tunefa.spec.workload import Workload

SMALL = Workload.parse("b1_h2_q64_d32_fp16_causal")
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
TIME, BYTES = "gpu__time_duration.sum", "dram__bytes.sum"


def test_pytorchs_profiler_on_the_cpu(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("it would profile the GPU")
    made = profiles.profile("torch", SMALL, ("tunefa", "operators"), tmp_path / "new")
    events = json.loads(made.files[0].read_text())["traceEvents"]
    assert {"tunefa", "tunefa:operators"} <= {event.get("name") for event in events}
    kernels = {name: {row["kernel"] for row in made.rows if row["contestant"] == name}
               for name in ("tunefa", "operators")}  # fmt: skip
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in kernels["tunefa"]
    assert "aten::bmm" in kernels["operators"] and "aten::bmm" not in kernels["tunefa"]
    (bmm,) = [row for row in made.rows if row["kernel"] == "aten::bmm"]
    assert bmm["count"] == 2 and bmm["time_us"] > 0
    (table,) = made.tables
    assert "there is no GPU" in table.title and len(table.rows) == min(30, len(made.rows))
    assert json.loads(json.dumps(made.to_data()))["tool"] == "torch"


def test_ten_figures_are_totals_and_means() -> None:
    first = {**dict.fromkeys(FIGURES, 10.0), TIME: 1000.0, BYTES: 2e6}
    second = {**dict.fromkeys(FIGURES, 40.0), TIME: 2000.0, BYTES: 3e6}
    row = profiles.figures("operators", Report([Launch("a", first), Launch("b", second)]))
    assert len(FIGURES) == 10 and row["kernels"] == 2
    assert (row[TIME], row[BYTES], row[TENSOR]) == (3000.0, 5e6, pytest.approx(30.0))


def test_ncu_writes_a_report_for_each_contestant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = list[Path]()

    def record(command: list[str], path: Path, metrics: list[str]) -> None:
        assert metrics == list(FIGURES) and str(SMALL) in command
        recorded.append(path)

    values = {**dict.fromkeys(FIGURES, 50.0), TIME: 7000.0, BYTES: None}
    monkeypatch.setattr(counters, "record", record)
    monkeypatch.setattr(counters, "imported", lambda path: Report([Launch("a", values)]))
    made = profiles.profile("ncu", SMALL, ("tunefa", "sdpa"), tmp_path)
    assert list(made.files) == recorded and len(recorded) == 2
    (table,) = made.tables
    assert list(table.head) == ["figure", "tunefa", "sdpa", "what it says"]
    assert table.rows[0][:3] == ["time, us", "7.0", "7.0"]
    assert table.rows[6][:3] == ["HBM traffic, MB", "–", "–"]


@pytest.mark.parametrize("tool", ["nsys", "Torch"])
def test_an_unknown_tool(tool: str, tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match="unknown profiler"):
        profiles.profile(tool, SMALL, ("tunefa",), tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TunefaError, match="cannot make the folder"):
        profiles.profile("torch", SMALL, ("tunefa",), tmp_path / "file" / "x")


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    (folder / f"torch-{SMALL}.json" / "in the way").mkdir(parents=True)
    with pytest.raises(TunefaError, match="cannot write"):
        profiles.profile("torch", SMALL, ("tunefa",), folder)
