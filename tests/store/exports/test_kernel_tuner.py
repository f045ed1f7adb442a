"""tunefa/store/exports/kernel_tuner.py: a landscape that kernel_tuner searches in simulation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.fake_objective import KERNEL, WORKLOAD
from tests.support.sample_landscapes import CONFIGS, compressed, raced, trial
from tunefa.spec.trial import Trial
from tunefa.store import exports, landscape
from tunefa.store.landscape import Landscape


@pytest.fixture
def recorded(tmp_path: Path) -> Landscape:
    """Thirty configs: one does not compile, one is wrong, and one is raced."""
    trials = [trial(config, 200.0 + place) for place, config in enumerate(CONFIGS[:30])]
    trials[2] = Trial(CONFIGS[2], "compile_failed", "no")
    trials[3] = Trial(CONFIGS[3], "wrong", "no")
    again = raced(trials[5], *[190.0] * 6)
    return landscape.load(compressed([*trials, again], tmp_path / "l.jsonl.xz"))


def dumped(recorded: Landscape) -> str:
    found = exports.of_trials("kernel_tuner")
    assert found is not None
    return found.dump_trials(recorded, KERNEL.name)


def test_it_holds_every_config_with_its_time_in_ms(recorded: Landscape) -> None:
    said = json.loads(dumped(recorded))
    assert said["device_name"] == "NVIDIA H200" and str(WORKLOAD) in said["kernel_name"]
    assert "written by tunefa" in said["comment"]
    names = said["tune_params_keys"]
    assert names == list(CONFIGS[0]) == list(said["tune_params"])
    assert len(said["cache"]) == 30
    for key, entry in said["cache"].items():
        assert key == ",".join(str(entry[name]) for name in names)
        assert all(entry[name] in said["tune_params"][name] for name in names)
    entries = list(said["cache"].values())
    assert entries[0]["time"] == 0.2 and entries[0]["times"] == [0.2]
    assert entries[0]["compile_time"] == 1000.0 and entries[0]["benchmark_time"] == 0.2
    assert entries[2]["time"] == "CompilationFailedConfig"
    assert entries[3]["time"] == "RuntimeFailedConfig" and entries[3]["times"] == []


def test_times_are_those_of_the_screening_with_what_a_race_has_added(recorded: Landscape) -> None:
    entries = list(json.loads(dumped(recorded))["cache"].values())
    times = recorded.times_us(KERNEL.name)
    assert [e["time"] for e in entries if isinstance(e["time"], float)] == [
        us / 1000 for us in times.values()
    ]
    assert entries[5]["times"] == [0.205]


def test_its_end_is_one_that_kernel_tuner_knows_as_complete(recorded: Landscape) -> None:
    assert dumped(recorded).strip().endswith("}\n}")


def test_kernel_tuner_searches_it_without_a_device(recorded: Landscape, tmp_path: Path) -> None:
    kernel_tuner = pytest.importorskip("kernel_tuner", reason="it comes with the extra `bench`")
    path = tmp_path / "space.kernel_tuner.json"
    path.write_text(dumped(recorded), encoding="utf-8")
    results, environment = kernel_tuner.tune_cache(str(path), quiet=True)
    right = {name: by for name, by in recorded.times_us(KERNEL.name).items()}
    assert environment["simulation"] and environment["device_name"] == "NVIDIA H200"
    assert sorted(each["time"] for each in results) == sorted(us / 1000 for us in right.values())
    best = environment["best_config"]
    least = min(right.values())
    assert right[tuple(sorted((name, best[name]) for name in CONFIGS[0]))] == least
    found, _ = kernel_tuner.tune_cache(
        str(path), strategy="random_sample", strategy_options={"max_fevals": 5}, quiet=True
    )
    assert len(found) == 5
