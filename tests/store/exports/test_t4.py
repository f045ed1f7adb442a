"""tunefa/store/exports/t4.py: a landscape in the results format of the benchmark hub."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fake_objective import KERNEL, WORKLOAD
from tests.support.sample_landscapes import CONFIGS, compressed, trial
from tunefa.spec.trial import OUTCOMES, Outcome, Trial
from tunefa.store import exports, landscape

FAILURES: dict[Outcome, str] = {
    "refused": "constraints",
    "compile_failed": "compile",
    "timeout": "timeout",
    "crashed": "runtime",
    "wrong": "correctness",
    "unstable": "correctness",
}


@pytest.fixture
def text(tmp_path: Path) -> str:
    """Two right configs, and one for each way to fail."""
    trials = [trial(CONFIGS[0], 100.0, 101.0, 102.0), trial(CONFIGS[1], 200.0)]
    trials += [Trial(CONFIGS[2 + i], outcome, "no") for i, outcome in enumerate(FAILURES)]
    recorded = landscape.load(compressed(trials, tmp_path / "l.jsonl.xz"))
    found = exports.of_trials("t4")
    assert found is not None
    return found.dump_trials(recorded, KERNEL.name)


def test_every_trial_is_a_result(text: str) -> None:
    said = json.loads(text)
    assert said["schema_version"] == "1.0.0" and "written by tunefa" in said["comment"]
    assert said["metadata"]["timeunit"] == "milliseconds"
    assert said["metadata"]["objective"] == "measured" and "PREDICTED" not in text
    assert said["metadata"]["workload"] == str(WORKLOAD)
    first, second, *failed = said["results"]
    assert first["configuration"] == dict(CONFIGS[0]) and first["invalidity"] == "correct"
    assert first["measurements"] == [{"name": "time", "value": 0.101, "unit": "milliseconds"}]
    assert first["times"]["runtimes"] == [0.1, 0.101, 0.102]
    assert first["times"]["compilation"] == 1000.0 and second["correctness"] == 1.0
    assert [each["invalidity"] for each in failed] == list(FAILURES.values())
    assert not any(each["correctness"] for each in failed)
    assert {"ok", *FAILURES} == {*OUTCOMES}


def test_the_association_s_package_reads_it(text: str, tmp_path: Path) -> None:
    pytest.importorskip("autotuning_methodology", reason="it comes with the extra `bench`")
    from autotuning_methodology.searchspace_statistics import SearchspaceStatistics

    path = tmp_path / "space.t4.json"
    path.write_text(text, encoding="utf-8")
    keys = ["compilation", "runtimes"]
    found = SearchspaceStatistics("kernel", "device", True, keys, ["time"], path, True)
    assert found.size == 2 + len(FAILURES)
    assert found.total_performance_absolute_optimum() == 0.101


@pytest.mark.parametrize("name", ["t4", "kernel_tuner"])
def test_predicted_times_are_labelled(tmp_path: Path, name: str) -> None:
    trials = [trial(config) for config in CONFIGS[:2]]
    predicted = landscape.load(compressed(trials, tmp_path / "l.jsonl.xz"))
    found = exports.of_trials(name)
    assert found is not None and not predicted.measured
    said = json.loads(found.dump_trials(predicted, KERNEL.name))
    assert "PREDICTED: the times come from a cost model" in said["comment"]
    assert said.get("metadata", {"objective": "predicted"})["objective"] == "predicted"
