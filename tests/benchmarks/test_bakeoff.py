"""benchmarks/bakeoff/: what counts as an evaluation, and what the tables say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bakeoff import held_out, report, runs, sampled
from benchmarks.bakeoff.report import LandscapeFacts, Report, StrategyRuns
from benchmarks.bakeoff.runs import Course, Tally
from benchmarks.bakeoff.sampled import Row
from tests.support.fake_objective import KERNEL, TARGET, WORKLOAD
from tests.support.sample_landscapes import CONFIGS, compressed, trial
from tunefa.costmodel import learning, training_rows
from tunefa.costmodel.estimate import Estimate
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Trial, identity
from tunefa.store import landscape

FEW = CONFIGS[:30]
LANDSCAPES = Path(__file__).resolve().parents[2] / "benchmarks" / "landscapes"


@pytest.fixture
def course(tmp_path: Path) -> Course:
    """Thirty configs in the order of the space: the third failed, and from the tenth on they are
    4 %, 1.5 %, 0.5 % and 0 % slower than the best; all others are twice as slow."""
    close = {9: 104.0, 10: 101.5, 11: 100.5, 12: 100.0}
    trials = [trial(config, close.get(place, 200.0)) for place, config in enumerate(FEW)]
    trials[2] = Trial(FEW[2], "compile_failed", "no")
    return Course(landscape.load(compressed(trials, tmp_path / "l.jsonl.xz")))


def test_a_course_offers_what_was_recorded(course: Course) -> None:
    assert list(course.problem.configs) == list(FEW)
    assert course.problem.expected_us and len(course.problem.expected_us) == len(FEW)


@pytest.mark.parametrize(("favourite", "excess"), [(10, 0.015), (12, 0.0), (5, 1.0), (2, math.inf)])
def test_the_first_pick_is_the_one_the_model_expects_to_be_fastest(
    course: Course, monkeypatch: pytest.MonkeyPatch, favourite: int, excess: float
) -> None:
    def by_model(model: Any, case: Case, configs: Sequence[Config], _: Any) -> list[Estimate]:
        keys = [identity(config) for config in configs]
        best = identity(FEW[favourite])
        return [Estimate(1.0 if key == best else 2.0, 0.1, 0.1) for key in keys]

    monkeypatch.setattr(runs, "by_model", by_model)
    assert course.first_pick == pytest.approx(excess)


def test_evaluations_are_counted_to_each_target_failures_too(course: Course) -> None:
    assert runs.own(course, "grid", seed=0) == (10, 11, 12)


def test_a_config_that_is_asked_for_again_is_not_counted_again(course: Course) -> None:
    tally, reached = Tally(course), []
    for place in (0, 0, 2, 0, 10, 12):
        assert not tally.done
        tally.evaluate(FEW[place])
        reached.append(tally.reached)
    assert reached[-2:] == [(3, 3, None), (3, 3, 4)] and tally.done


def test_a_run_ends_at_its_limit(course: Course) -> None:
    assert runs.own(course, "grid", seed=0, limit=10) == (10, None, None)


@pytest.mark.parametrize("name", ["genetic_algorithm", "diff_evo", "random_sample"])
def test_a_judge_s_run_is_that_of_its_seed(name: str) -> None:
    pytest.importorskip("kernel_tuner", reason="it comes with the extra `bench`")
    from benchmarks.bakeoff import judges

    (path,) = LANDSCAPES.glob("*q16384_k16384_d256*")
    found = [judges.run(runs.course(path), name, seed) for seed in (1, 2, 3, 1, 2, 3)]
    assert found[:3] == found[3:] and found[0] != found[1]
    counted = [count for reached in found for count in reached if count is not None]
    assert counted and all(1 <= count <= runs.LIMIT for count in counted)


def reports() -> Report:
    """Two landscapes; `fast` gets there at once on one, and on the other in one run of three."""
    results = [
        StrategyRuns("fwd_b1_h8_kv8_q512", "slow", [(None, None, None)] * 3),
        StrategyRuns("fwd_b2_h8_kv8_q512", "slow", [(5, 7, None), (5, 9, None), (5, None, None)]),
        StrategyRuns("fwd_b1_h8_kv8_q512", "fast", [(1, 2, 3)] * 3),
        StrategyRuns("fwd_b2_h8_kv8_q512", "fast", [(1, 4, None), (1, 6, None), (1, 5, 9)]),
    ]
    names = dict.fromkeys(each.landscape for each in results)
    landscapes = [LandscapeFacts(name, 1000, (3, 2, 1), 0.25, 0.1) for name in names]
    return Report(landscapes, results, {"optuna": "5.0"})


def test_medians_count_runs_that_did_not_get_there_as_endless() -> None:
    made = reports()
    assert made.strategies == ["fast", "slow"]
    assert [made.overall("fast", target) for target in range(3)] == [1, 3.5, math.inf]
    assert made.of("slow")[1].median(1) == 9
    assert made.overall("slow", 1) == math.inf
    assert sorted(made.pooled("slow"))[:2] == [7, 9] and len(made.pooled("slow")) == 6


def test_tables_replace_what_stood_between_the_marks() -> None:
    page = "Before.\n<!-- bakeoff -->\nold\n<!-- end of bakeoff -->\nAfter.\n"
    filled = reports().filled(page)
    assert filled.startswith("Before.\n") and filled.endswith("After.\n") and "old" not in filled
    assert f"| fast | 1 | 3.5 | > {runs.LIMIT} |" in filled
    assert "| cost model's first choice | +25.0% | +25.0% |" in filled and "optuna 5.0" in filled
    assert reports().filled(filled) == filled


def test_the_page_has_the_marks() -> None:
    def section(page: str) -> str:
        return page.split("<!-- bakeoff -->")[1].split("<!-- end of bakeoff -->")[0]

    page = (report.DOCS / "search.md").read_text(encoding="utf-8")
    assert "| strategy | within 5% |" in section(page) and "\n| auto | " in section(page)
    assert "\n| auto |" not in section(reports().filled(page))


def test_a_sampled_landscape_has_rows_and_a_summary(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_out, "model", lambda path: None)
    made = sampled.rows(course.landscape.path, seeds=3)
    assert [row.strategy for row in made] == ["auto", "prior"]
    assert made[0].kernel == "attention_fwd_triton" and len(made[0].reached) == 3
    assert all(1 <= (count or 0) <= len(FEW) for count in made[0].reached[0])
    slow = Row("auto", "a", "NVIDIA H100", "b2", math.inf, 0.01, [(1, 40, None)] * 3)
    fast = Row("auto", "a", "NVIDIA H100", "b1", 0.2, 0.02, [(1, 2, 3)] * 3)
    lines = sampled.summary([slow, fast, made[0]]).splitlines()
    assert lines[2] == (
        "| a, NVIDIA H100 | auto | 2 | +1.5% | fails | 1 | 21 | > 400 | 1 | 40 (b2) |"
    )
    assert lines[3].startswith("| attention_fwd_triton, NVIDIA H200 | auto | 1 |")
    assert str(fast) == "a, NVIDIA H100, b1: auto 1, 2, 3; default +2.0%, first choice +20.0%"


def test_a_model_learns_from_all_workloads_but_the_landscape_s(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [WORKLOAD, *(replace(WORKLOAD, batch=batch) for batch in (2, 3, 4))]
    rows: Any = [
        training_rows.Row(Case(KERNEL, each, TARGET), trial(FEW[0], 9.0), 9.0) for each in others
    ]
    held: Any = {(KERNEL.name, "sm90"): rows}
    monkeypatch.setattr(held_out, "_rows", lambda: held)
    monkeypatch.setattr(learning, "fit", lambda taught: taught)
    assert held_out.model(course.landscape.path) == rows[1:]
    del rows[-1]
    assert held_out.model(course.landscape.path) is None, "two workloads teach nothing"
