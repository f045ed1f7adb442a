"""Tables and plots of traffic, and counters turned into rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.support.pictures import drawn
from tunefa.errors import TunefaError
from tunefa.experiments import here, traffic
from tunefa.experiments.document import MEASURED, Document, Row
from tunefa.experiments.traffic import EXPERIMENT
from tunefa.measure import counters
from tunefa.measure.counters import Launch, Report
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload

WORKLOAD = "b4_h32_q2048_d64_fp16_causal"


def rows(own_bytes: float = 100e6) -> list[Row]:
    common = {"workload": WORKLOAD, "fast_elements": 1000, "source": "ncu", "l2_hit_rate": 0.5}
    return [
        {**common, "contestant": "operators", "read_bytes": 1.5e9, "written_bytes": 0.5e9,
         "l2_bytes": 3e9, "model_bytes": 2e9, "theory_bytes": 1e9},
        {**common, "contestant": "tunefa", "read_bytes": own_bytes, "written_bytes": 0.0,
         "l2_bytes": 4e8, "model_bytes": 1e8, "theory_bytes": 1e7, "block_m": 128, "block_n": 64},
    ]  # fmt: skip


def document(own_bytes: float = 100e6) -> Document:
    return Document("traffic", MEASURED, "sm90", "NVIDIA H200", rows(own_bytes), date="2026-01-01")


def test_the_table_and_what_is_said() -> None:
    (table,) = EXPERIMENT.tables(document())
    cells = dict(zip(table.head, table.rows[1], strict=True))
    assert cells["HBM\nMB"] == "100.0" and cells["L2\nhits"] == "50.0 %"
    assert cells["source"] == "ncu" and table.rows[0][3] == "2,000"
    said = " ".join(table.remarks)
    assert "tunefa moves 95.0 % less; a write-up claims 95 %" in said
    assert "ncu empties the caches" in said and "Each tile of 128 queries" in said
    assert "The operators move all scores" in said
    assert "copy of the scores, which is none: it moves 2,147 MB more" in said


def test_a_changed_number_changes_table_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (table,) = EXPERIMENT.tables(document(400e6))
    assert "80.0 % less" in table.remarks[0]
    first = drawn(EXPERIMENT, document(), tmp_path / "a.png")
    again = drawn(EXPERIMENT, document(), tmp_path / "b.png")
    other = drawn(EXPERIMENT, document(400e6), tmp_path / "c.png")
    assert np.array_equal(first, again) and not np.array_equal(first, other)


def test_rows_with_errors_and_gaps_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    gap: Row = {"workload": WORKLOAD, "contestant": "tunefa", "why_model": "no ncu"}
    failed: Row = {"workload": "q512_varlen", "error": "it is packed"}
    found = Document("traffic", MEASURED, "sm90", "NVIDIA H200", [gap, failed])
    (table,) = EXPERIMENT.tables(found)
    assert table.rows[0][3] == "–" and "tunefa is modelled: no ncu." in table.remarks
    drawn(EXPERIMENT, found, tmp_path / "a.png")


def test_counters_of_several_kernels_are_added() -> None:
    first = {"dram__bytes_read.sum": 10.0, "dram__bytes_write.sum": 1.0, "lts__t_bytes.sum": 20.0,
             "lts__t_sector_hit_rate.pct": 30.0, "gpu__time_duration.sum": 1000.0}  # fmt: skip
    second = {**first, "lts__t_bytes.sum": 60.0, "lts__t_sector_hit_rate.pct": 70.0}
    found = traffic.counted(Report([Launch("a", first), Launch("b", second)]))
    assert (found["read_bytes"], found["written_bytes"], found["l2_bytes"]) == (20.0, 2.0, 80.0)
    assert found["l2_hit_rate"] == pytest.approx(0.6) and found["time_us"] == 2.0
    assert found["kernels"] == 2 and found["source"] == "ncu"


def test_a_chip_without_the_counters() -> None:
    with pytest.raises(TunefaError, match="has no counter"):
        traffic.counted(Report([Launch("a", dict.fromkeys(traffic.METRICS))]))


def test_by_the_model_most_of_the_traffic_is_saved() -> None:
    standard, own = traffic.modelled_rows(Workload.parse(WORKLOAD), Target.named("h200"))
    assert standard["source"] == own["source"] == "model"
    assert standard["model_bytes"] == standard["read_bytes"] + standard["written_bytes"]
    least = Workload.parse(WORKLOAD).io_bytes
    assert least <= own["model_bytes"] < 0.05 * standard["model_bytes"]


def test_what_ncu_cannot_read_is_modelled(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunefa.measure.contest import Settings

    def read(command: list[str], metrics: Sequence[str]) -> Report:
        assert command[-1] == "5" and tuple(metrics) == traffic.METRICS
        if "operators" in command:
            raise TunefaError("no rights")
        return Report([Launch("attention", dict.fromkeys(metrics, 50e6))])

    monkeypatch.setattr(counters, "read", read)
    monkeypatch.setattr(here, "target", lambda: Target.named("h200"))
    standard, own = EXPERIMENT.measured(Workload.parse(WORKLOAD), Settings(seed=5))
    assert (standard["source"], standard["why_model"]) == ("model", "no rights")
    assert own["source"] == "ncu" and own["read_bytes"] == 50e6 and "why_model" not in own
    assert own["model_bytes"] > 100e6, "the model's figure stays beside the counted one"
