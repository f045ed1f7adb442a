"""Shares of busy units, and the arithmetic of FLOPs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.pictures import drawn
from tunefa.errors import TunefaError
from tunefa.experiments import here, utilization
from tunefa.experiments.document import MEASURED, MODELLED, Document, Row
from tunefa.experiments.utilization import EXPERIMENT, METRICS, POINTS
from tunefa.measure import counters
from tunefa.measure.counters import Launch, Report
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload


@pytest.mark.parametrize(
    ("point", "flops", "wrong"),
    [
        (POINTS[0], 4 * 16 * 4096 * 15360 * 64, 4 * 16 * 4096 * 4096 * 64),
        (POINTS[1], 4 * 8 * 1664 * 1664 * 32, 4 * 8 * 1664 * 1664 * 32),
        ("h2_q10_d16_dv32_causal", 2 * 2 * 55 * 48, 2 * 2 * 100 * 48),
    ],
)
def test_flops(point: str, flops: int, wrong: int) -> None:
    row = utilization.arithmetic(Workload.parse(point))
    assert (row["flops"], row["flops_with_seqlen_q_twice"]) == (flops, wrong)
    assert row["pairs"] * row["heads"] * row["flops_per_pair"] == flops


def test_the_stated_products() -> None:
    first, second = (utilization.arithmetic(Workload.parse(point)) for point in POINTS[:2])
    assert round(first["flops"] / 1e12, 3) == 0.258
    assert round(first["flops_with_seqlen_q_twice"] / 1e12, 3) == 0.069
    assert first["flops"] / first["flops_with_seqlen_q_twice"] == 3.75
    assert round(second["flops"] / 1e12, 4) == 0.0028


def document(tensor: float = 0.5) -> Document:
    shares: Row = {"tensor_share": tensor, "exp2_share": 0.25, "source": "model"}
    rows = [
        {**utilization.arithmetic(Workload.parse(point)), **shares, "time_us": 1000.0,
         "peak_tflops": 1000.0}
        for point in POINTS[:2]
    ]  # fmt: skip
    rows.append({"workload": "q512_varlen", "error": "no"})
    return Document("utilization", MODELLED, "sm87", "Orin", rows)


def test_tables_spell_the_arithmetic_out() -> None:
    shares, steps = EXPERIMENT.tables(document())
    cells = dict(zip(shares.head, shares.rows[0], strict=True))
    assert cells["TFLOP/s"] == "257.7" and cells["of\npeak"] == "26 %"
    assert cells["tensor\nbusy"] == "50 %" and cells["HBM\nbusy"] == "–"
    assert steps.rows[0][-2:] == ["3.75×", "0.0690"] and steps.rows[1][-3:] == [
        "same",
        "",
        "0.0028",
    ]
    assert steps.remarks[0] == (
        "4,096 x 15,360: 62,914,560 pairs x 16 x 2 x (64 + 64) = 0.258 TFLOP. With seqlen_q twice, "
        "4,096 x 4,096 x 16 x 2 x (64 + 64) = 0.069 TFLOP, which is 3.75 times too low."
    )


def test_a_changed_number_changes_table_and_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert EXPERIMENT.tables(document(0.75))[0].rows[0][4] == "75 %"
    first = drawn(EXPERIMENT, document(), tmp_path / "a.png")
    other = drawn(EXPERIMENT, document(0.75), tmp_path / "b.png")
    assert not np.array_equal(first, other)


def test_counters_are_weighted_with_time() -> None:
    short = {**dict.fromkeys(METRICS.values(), 10.0), "gpu__time_duration.sum": 100.0}
    long = {**dict.fromkeys(METRICS.values(), 90.0), "gpu__time_duration.sum": 300.0}
    row = utilization.counted(Report([Launch("a", short), Launch("b", long)]))
    assert row["tensor_share"] == row["hbm_share"] == pytest.approx(0.7)
    assert row["source"] == "ncu"


@pytest.mark.parametrize("chip", ["orin", "h200"])
def test_modelled_shares_are_shares(chip: str) -> None:
    (row,) = utilization.modelled_row(Workload.parse(POINTS[3]), Target.named(chip))
    shares = [value for name, value in row.items() if name.endswith("_share")]
    assert shares and all(0 <= share <= 1 for share in shares)
    # Useful FLOPs at the peak take no longer than the tensor cores are busy.
    assert row["flops"] / row["time_us"] / 1e6 <= row["peak_tflops"] * row["tensor_share"] * 1.001


@pytest.mark.parametrize("has_counters", [True, False])
def test_measured_shares(has_counters: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from tunefa.measure import contest
    from tunefa.measure.contest import Contest, Score, Settings

    workload = Workload.parse(POINTS[0])
    score = Score((400.0, 500.0, 600.0), 1e-4, 1e-3, True)
    timed = Contest(workload, "graph", {"tunefa": score})
    monkeypatch.setattr(contest, "run", lambda *_: timed)
    monkeypatch.setattr(here, "target", lambda: Target.named("h200"))

    def read(command: list[str], metrics: list[str]) -> Report:
        if not has_counters:
            raise TunefaError("no rights")
        return Report([Launch("attention", dict.fromkeys(metrics, 40.0))])

    monkeypatch.setattr(counters, "read", read)
    (row,) = EXPERIMENT.measured(workload, Settings())
    assert row["time_us"] == 500.0
    found = Document("utilization", MEASURED, "sm90", "NVIDIA H200", [row])
    said = " ".join(EXPERIMENT.tables(found)[0].remarks)
    if has_counters:
        assert row["tensor_share"] == 0.4 and "Counted by ncu" in said
    else:
        reached = row["flops"] / 500.0 / 1e6
        assert row["tensor_share"] == pytest.approx(reached / row["peak_tflops"])
        assert row["source"] == "time" and "there are no counters: no rights." in said


def test_a_call_that_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    from tunefa.measure import contest
    from tunefa.measure.contest import Contest, Settings

    workload = Workload.parse(POINTS[0])
    lost = Contest(workload, "graph", {}, {"tunefa": "it is wrong"})
    monkeypatch.setattr(contest, "run", lambda *_: lost)
    monkeypatch.setattr(here, "target", lambda: Target.named("h200"))
    with pytest.raises(TunefaError, match="tunefa was not timed: it is wrong"):
        EXPERIMENT.measured(workload, Settings())
