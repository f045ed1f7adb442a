"""benchmarks/predicted/: its workloads, what is hidden from a prediction, its steps and tables."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.predicted import __main__ as steps
from benchmarks.predicted import learning, rows, table
from benchmarks.predicted.allowance import Allowance
from benchmarks.predicted.predict import Blind, expected
from benchmarks.predicted.workloads import WORKLOADS
from tests.support.clock import Clock
from tests.support.fake_objective import SM90, TARGET, Fake
from tests.support.own_kernels import OwnKernels
from tests.support.sample_predictions import (
    WORKLOAD,
    answer,
    kernels,
    measurement,
    prediction,
    racer,
)
from tests.support.sample_records import measured as record
from tests.support.tree import TREE
from tunefa.costmodel import learned
from tunefa.errors import TunefaError
from tunefa.search.budget import Budget
from tunefa.spec import kernel as shipped_kernels
from tunefa.spec.target import Case
from tunefa.spec.trial import Trial
from tunefa.spec.workload import Workload
from tunefa.store import results
from tunefa.store.results import Store

H = "NVIDIA H100 80GB HBM3"


def test_24_workloads_that_no_landscape_holds() -> None:
    workloads = {Workload.parse(text) for text in WORKLOADS}
    assert len(workloads) == len(WORKLOADS) == 24
    files = [*(TREE / "benchmarks" / "landscapes").rglob("*.jsonl.xz")]
    recorded = {Workload.parse(path.name.split(".")[0].split("--")[1]) for path in files}
    assert len(recorded) > 20 and not workloads & recorded
    assert all(shipped_kernels.serving(each, SM90) for each in workloads)
    assert {each.head_dim for each in workloads} == {64, 80, 96, 128, 160, 192, 256}


@pytest.fixture
def blind(own_kernels: OwnKernels, fake: type[Fake], tmp_path: Path) -> Blind:
    """Without an H100; the cost model of the fake says that a DELAY of 3 is best."""
    kernels(own_kernels, "blind_a", "blind_b")
    fake.judge = staticmethod(lambda config: 100.0 + 10.0 * abs(config["DELAY"] - 3))
    return Blind(TARGET, tmp_path / "own", H)


def test_a_prediction_is_a_search_the_defaults_and_the_runtime_s_choice(blind: Blind) -> None:
    near = replace(WORKLOAD, seqlen_q=1100, seqlen_k=1100)
    other = replace(WORKLOAD, dtype="fp16")
    shipped = Store([results.shipped_root()])
    for workload, device, delay in (
        (near, "NVIDIA H200", 6),
        (WORKLOAD, "NVIDIA H200", 7),
        (other, "NVIDIA H200", 7),
        (near, H, 8),
    ):
        config = {"DELAY": delay}
        made = record(str(workload), kernel="blind_a", config=config, device=device)
        shipped.add(made)
    found = blind.predicted(WORKLOAD, Budget(trials=40), None)
    assert (found.workload, found.device) == (str(WORKLOAD), "NVIDIA H200")
    # The search tries only what could change its decision, so perhaps the neighbour of the best.
    assert found.winner.kernel == "blind_a" and abs(found.winner.config["DELAY"] - 3) <= 1
    assert [each.kernel for each in found.defaults] == ["blind_a", "blind_b"]
    assert {each.config["DELAY"] for each in found.defaults} == {5}
    assert found.runtime.config == {"DELAY": 6} and found.runtime.why.startswith("nearest: ")
    assert found.made["without"] == H and found.made["model"] >= 1
    assert list(found.answers) == ["predicted", "runtime", "default", "default of blind_b"]
    assert not list(results.shipped_root().rglob("*predicted*")), "it is the user's"


def test_the_interval_holds_90_percent(own_kernels: OwnKernels) -> None:
    (kernel,) = kernels(own_kernels, "interval_a")
    case = Case(kernel, WORKLOAD, TARGET)
    compiled = Trial({"DELAY": 1}, "ok", predicted_us=50.0, predicted_sd=0.1)
    found = expected(case, compiled.config, compiled)
    assert found.expected_us == 50.0
    assert [found.low_us, found.high_us] == pytest.approx([42.4, 58.9], abs=0.1)
    before = expected(case, {"DELAY": 1}, None)
    assert before.low_us < before.expected_us < before.high_us


def test_models_that_saw_the_device_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {"attention_fwd_cuda_sm90": SimpleNamespace(provenance={"devices": [H]})}

    def load(name: str, arch: str) -> Any:
        return None if learned.path(name, arch).exists() else seen.get(name)

    monkeypatch.setattr(learned, "load", load)
    learning.install(None, "sm90", None)
    with pytest.raises(TunefaError, match="attention_fwd_cuda_sm90 has learned from an NVIDIA H1"):
        learning.install(None, "sm90", H)
    with pytest.raises(TunefaError, match="holds no learned model of sm90"):
        learning.install(tmp_path, "sm90", H)
    learned.path("attention_fwd_cuda_sm90", "sm90", tmp_path).write_bytes(b"another")
    learning.install(tmp_path, "sm90", H)
    assert learned.path("attention_fwd_cuda_sm90", "sm90").read_bytes() == b"another"


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    made, path = prediction("a", "b"), tmp_path / "new" / "rows.jsonl"
    assert rows.predictions(path) == []
    raced = measurement(made, 100.0, racer(["search"], {"DELAY": 3}, 90.0))
    for row in (made, made):
        rows.append(path, row)
    assert rows.predictions(path) == [made, made]
    rows.append(tmp_path / "measured.jsonl", raced)
    assert rows.measurements(tmp_path / "measured.jsonl") == [raced]
    assert str(raced) == f"{made.workload}: predicted +11.1%, search +0.0%"


class Session:
    """Each workload takes 1 s more than its budget; a trial takes 0.1 s. One workload fails."""

    def __init__(self, clock: Clock, fails: str = "") -> None:
        self.clock, self.fails = clock, fails
        self.budgets: list[float | None] = []

    def measured(self, made: rows.Prediction, budget: Budget) -> rows.Measurement:
        self.budgets.append(budget.seconds or budget.trials)
        self.clock.sleep((budget.seconds or 0.1 * (budget.trials or 0)) + 1.0)
        if made.workload == self.fails:
            raise ValueError("the race was lost")
        return measurement(made, 100.0)


def run(session: Session, out: Path, budget: str, seconds: float | None) -> list[str]:
    """Measures four workloads; returns those that were written."""
    todo = [prediction("a", "b", workload=f"fwd_{place}") for place in range(4)]
    allowance = Allowance(Budget.parse(budget), seconds)
    steps._measure_each(session, todo, out, allowance)  # type: ignore[arg-type]
    return [row.workload for row in rows.measurements(out)]


@pytest.mark.parametrize(("budget", "each"), [("11s", 11.0), ("100", 100)])
def test_without_a_limit_each_search_has_its_budget(
    clock: Clock, tmp_path: Path, budget: str, each: float
) -> None:
    session = Session(clock)
    assert run(session, tmp_path / "out", budget, None) == ["fwd_0", "fwd_1", "fwd_2", "fwd_3"]
    assert session.budgets == [each] * 4


@pytest.mark.parametrize(
    ("budget", "each"), [("11s", [8.0, 8.33, 8.83, 9.83]), ("100", [100, 87, 87, 86])]
)
def test_searches_share_a_time_that_is_short(
    clock: Clock, tmp_path: Path, budget: str, each: list[float]
) -> None:
    session, start = Session(clock), clock.now
    assert len(run(session, tmp_path / "out", budget, 40.0)) == 4 and clock.now - start <= 40.0
    assert session.budgets == pytest.approx(each, abs=0.01)


@pytest.mark.parametrize(("budget", "each"), [("11s", [5.0, 5.0]), ("60", [60, 40])])
def test_what_has_no_time_is_left_out_and_named(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str], budget: str, each: list[float]
) -> None:
    session = Session(clock)
    assert run(session, tmp_path / "out", budget, 14.0) == ["fwd_0", "fwd_1"]
    assert session.budgets == each and clock.now <= 1014.0
    assert "the time is over, so these are left out: fwd_2, fwd_3" in capsys.readouterr().err


def test_an_error_costs_one_workload(
    clock: Clock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(clock, fails="fwd_1")
    assert run(session, tmp_path / "out", "11s", None) == ["fwd_0", "fwd_2", "fwd_3"]
    assert "fwd_1: left out: ValueError: the race was lost" in capsys.readouterr().err


def test_what_was_predicted_is_not_predicted_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def predicted(self: Blind, workload: Workload, budget: Budget, workers: Any) -> rows.Prediction:
        assert (budget.seconds, workers, self.without) == (3.0, 2, H)
        return prediction("a", "b", workload=str(workload))

    monkeypatch.setattr(Blind, "predicted", predicted)
    monkeypatch.setattr(learned, "load", lambda kernel, arch: None)
    out = tmp_path / "out.jsonl"
    arguments = ["predict", "--device", "h200", "--learned-without", "h100", "--budget", "3s"]
    arguments += ["--workers", "2"]
    for texts in (["q64"], ["q64", "q96"]):
        monkeypatch.setattr(sys, "argv", ["predicted", *arguments, "--out", str(out), *texts])
        steps.main()
    assert [row.workload for row in rows.predictions(out)] == [
        str(Workload.parse(text)) for text in ("q64", "q96")
    ]


def test_the_table(tmp_path: Path) -> None:
    page = tmp_path / "model.md"
    page.write_text("Before.\n<!-- predicted -->\nold\n<!-- end of predicted -->\nAfter.\n")
    flops = WORKLOAD.flops / 1e6
    good = measurement(
        replace(prediction("a", "b"), winner=answer("a", 2, flops / 500)),
        flops / 480,
        racer(["default"], {"DELAY": 5}, flops / 400),
        racer(["search", "runtime"], {"DELAY": 3}, flops / 500),
    )
    long = prediction("a", "b", workload="fwd_q2048_h8_kv2_d64")
    left = [racer(["search"], {"DELAY": 3}, 90.0)]
    bad = replace(measurement(long, 1.0), racers=left, left_out={"predicted": "wrong: because"})
    alone = measurement(long, 200.0, racer(["default"], {"DELAY": 5}, 100.0))
    made = table.write([bad, alone, good], page)
    lines = [line for line in made.splitlines() if line.startswith("|")]
    assert lines[3] == (
        "| b1 h8/2 s1024 d64 causal "
        "| 500 | 480 | +4.2% | -16.7% | 400 | 500 | 500 (455 to 550) | yes |"
    )
    assert lines[2].endswith("| no |") and "| +100.0% | +100.0% |" in lines[2]
    assert lines[4:] == [
        "| median |  |  | +52.1% | +41.7% |  |  |  | 1 of 2 |",
        "| worst |  |  | +100.0% | +100.0% |  |  |  |  |",
    ]
    page_text = page.read_text()
    assert page_text.startswith("Before.\n") and page_text.endswith("After.\n")
    assert made in page_text and "old" not in page_text
    other = replace(good.prediction, made={"without": H})
    both = table.write([bad, good, replace(good, prediction=other)], page)
    assert "NVIDIA H200, with a model that never saw an NVIDIA H100 80GB HBM3:" in both
    assert "b1 h8/2 s2048 d64 causal: predicted left out (wrong: because)." in both


def test_the_page_has_the_tables_of_what_is_kept(tmp_path: Path) -> None:
    kept = [row for file in sorted(steps.KEPT.glob("*.xz")) for row in rows.measurements(file)]
    copy = tmp_path / "model.md"
    copy.write_text(table.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    table.write(kept, copy)
    assert copy.read_text(encoding="utf-8") == table.PAGE.read_text(encoding="utf-8"), (
        "run python -m benchmarks.predicted table"
    )


def test_the_page_has_the_marks() -> None:
    page = table.PAGE.read_text(encoding="utf-8")
    assert page.index("<!-- predicted -->") < page.index("<!-- end of predicted -->")
