"""benchmarks/bakeoff/: spaces of others, what a run on them costs, and the score."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.bakeoff import foreign, runs
from benchmarks.bakeoff.foreign import ForeignCourse, Space, TimedTally
from tests.support.fake_objective import KERNEL
from tests.support.sample_portfolios import WORKLOADS, journal
from tunefa.errors import TunefaError
from tunefa.search.sampler import Candidates
from tunefa.spec.trial import identity
from tunefa.store import exports, landscape

X, Y = range(12), ("a", "b", "c")


def cache() -> dict[str, Any]:
    """36 configs: the time falls with x, and (5, "b") does not compile."""
    entries: dict[str, Any] = {}
    for x, y in itertools.product(X, Y):
        time: float | str = 2.0 - 0.05 * x + 0.2 * Y.index(y)
        failed = (x, y) == (5, "b")
        entries[f"{x},{y},15"] = {
            "x": x, "y": y, "fixed": 15,
            "time": "CompilationFailedConfig" if failed else time,
            **({} if failed else {"times": [time, time]}),
            "compile_time": 100.0, "verification_time": 1.0, "strategy_time": 1e9,
        }  # fmt: skip
    return {
        "device_name": "A chip",
        "kernel_name": "a_kernel",
        "tune_params_keys": ["x", "y", "fixed"],
        "tune_params": {"x": [*X], "y": [*Y], "fixed": [15]},
        "cache": entries,
    }


@pytest.fixture
def space(tmp_path: Path) -> Space:
    path = tmp_path / "space.json"
    path.write_text(json.dumps(cache()), encoding="utf-8")
    return foreign.read(path)


def test_a_cache_file_is_a_space(space: Space, tmp_path: Path) -> None:
    assert space.name == "a_kernel, A chip" and len(space.entries) == 36
    assert len(space.excess) == 35 and min(space.excess.values()) == 0.0
    assert space.values == {"x": [*X], "y": [*Y], "fixed": [15]}
    first, failed = space.entries[0], space.by_identity[identity({"x": 5, "y": "b", "fixed": 15})]
    assert first.trial.median_us == 2000.0 and first.cost_ms == 105.0
    assert failed.trial.outcome == "crashed" and failed.trial.reason == "CompilationFailedConfig"
    assert failed.cost_ms == 101.0
    packed = tmp_path / "space.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(cache()).encode()))
    assert foreign.read(packed) == space


def test_strategies_learn_from_each_config(space: Space) -> None:
    problem = ForeignCourse(space, 1).problem
    candidates = Candidates(problem)
    assert [candidates.find(config) for config in problem.configs] == [*range(36)]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            lambda data: data.pop("cache"),
            "is no complete cache file of kernel_tuner and no T4 file: KeyError",
        ),
        (lambda data: data["tune_params"].pop("x"), "KeyError: 'x'"),
        (lambda data: data.update(cache={}), "holds no config with a time"),
        (lambda data: data.update(cache=[1]), "AttributeError"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path: Path, change: Any, error: str) -> None:
    data, path = cache(), tmp_path / "space.json"
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(TunefaError, match=f"space.json .*{error}"):
        foreign.read(path)


def test_a_t4_file_is_the_same_space(space: Space, tmp_path: Path) -> None:
    results = [
        {
            "configuration": {"x": each.config["x"], "y": each.config["y"], "fixed": 15},
            "times": {
                "compilation": each.compile_ms / scale, "validation": each.verify_ms / scale,
                **({"runtimes": [ms / scale for ms in each.runs_ms]} if each.runs_ms else {}),
            },
            "invalidity": "correct" if each.time_ms else "compile",
            "measurements": [{"name": "time", "value": each.time_ms or "Failed"}],
        }
        for scale in (1000.0,)
        for each in space.entries
    ]  # fmt: skip
    path = tmp_path / "a_T4.json"
    path.write_text(json.dumps({"results": results}), encoding="utf-8")
    found = foreign.read(path)
    assert found.name == "a_T4, T4" and found.excess == space.excess
    assert {name: [*each] for name, each in found.values.items()} == space.values
    assert [e.cost_ms for e in found.entries] == pytest.approx([e.cost_ms for e in space.entries])
    assert [e.failure for e in found.entries if e.failure] == ["compile"]


def test_tunefa_s_own_exports_are_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFA_HOME", str(tmp_path))
    recorded = landscape.load(journal(WORKLOADS[0], {0: 100.0, 1: None, 2: 200.0}))
    found = []
    for name in ("kernel_tuner", "t4"):
        written = exports.of_trials(name)
        assert written is not None
        path = tmp_path / f"space.{name}.json"
        path.write_text(written.dump_trials(recorded, KERNEL.name), encoding="utf-8")
        found.append(foreign.read(path))
    assert [len(each.entries) for each in found] == [3, 3]
    assert found[0].excess == found[1].excess and set(found[0].excess.values()) == {0.0, 1.0}
    assert found[0].values == found[1].values


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(TunefaError, match=r"missing\.json cannot be read: No such file"):
        foreign.read(tmp_path / "missing.json")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(TunefaError, match=r"cut\.json\.gz is no complete cache file"):
        foreign.read(tmp_path / "cut.json.gz")
    (tmp_path / "plain.json.gz").write_bytes(b"{}")
    with pytest.raises(TunefaError, match=r"plain\.json\.gz cannot be read"):
        foreign.read(tmp_path / "plain.json.gz")


def test_a_strategy_knows_nothing_of_a_space_of_others(space: Space) -> None:
    problem, other = ForeignCourse(space, 1).problem, ForeignCourse(space, 2).problem
    assert len(set(problem.expected_us)) == 1 and not problem.first and problem.trials is None
    assert [p.name for p in problem.parameters] == ["x", "y", "fixed"]
    assert list(problem.configs) != list(other.configs)
    assert {*map(identity, problem.configs)} == {*space.by_identity}


def test_a_run_ends_when_its_evaluations_have_taken_the_time(space: Space) -> None:
    course = ForeignCourse(space, 0)
    tally = TimedTally(course, 250.0)
    config = space.entries[0].config
    for _ in range(9):  # a config that is asked for again costs nothing
        tally.evaluate(config)
    assert tally.evaluations == 1 and not tally.done
    for entry in space.entries[1:3]:
        tally.evaluate(entry.config)
    assert tally.done and len(tally.tried) == 3


@pytest.mark.parametrize("name", ["auto", "prior", "random"])
def test_strategies_find_the_best_without_a_model(space: Space, name: str) -> None:
    tally = TimedTally(ForeignCourse(space, 3), 1e6)
    runs.run(ForeignCourse(space, 3), name, 3, tally)
    assert tally.evaluations == 36 and None not in tally.reached
    if name != "random":
        assert (tally.reached[-1] or 99) <= 18


def test_the_score_is_near_1_for_the_best_at_once_and_below_for_the_worst(
    space: Space, tmp_path: Path
) -> None:
    pytest.importorskip("autotuning_methodology", reason="it comes with the extra `bench`")
    from benchmarks.bakeoff import score
    from benchmarks.bakeoff.score import Scale

    ranked = sorted(space.entries, key=lambda each: each.time_ms or 9.0)
    found = score.scores([(Scale(space, tmp_path), {
        "best first": [ranked] * 3, "worst first": [ranked[::-1]] * 3,
    })])  # fmt: skip
    assert found["best first"] == pytest.approx(1.0, abs=0.02)
    assert found["worst first"] < 0.0


def test_the_tables_say_who_came_close_and_who_did_not(space: Space, tmp_path: Path) -> None:
    pytest.importorskip("autotuning_methodology", reason="it comes with the extra `bench`")
    pytest.importorskip("kernel_tuner", reason="it comes with the extra `bench`")
    from benchmarks.bakeoff import yardstick

    names = ["auto", "random", "kernel_tuner genetic_algorithm"]
    found = yardstick.compared([space, space], names, 2, tmp_path)
    assert set(found["scores"]) == set(names) and len(found["spaces"]) == 2
    facts = found["spaces"][0]
    assert (facts["configs"], facts["failed"], facts["within"][-1]) == (36, 1, 1)
    assert all(len(own["reached"]) == 2 for own in facts["runs"].values())
    said = yardstick.tables(json.loads(json.dumps(found)))
    assert "| a_kernel, A chip | 36 | 1 |" in said and "| all spaces | score |" in said
    assert said.count("| auto | ") == 3 and "2 seeds" in said
