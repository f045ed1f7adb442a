"""tunefa/measure/replayed.py: searches answered by a landscape."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_objective import KERNEL, request, user_store
from tests.support.sample_landscapes import CONFIGS, compressed, raced, trial
from tunefa.measure.replayed import Replayed
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.search.request import Result
from tunefa.spec.trial import Trial, identity
from tunefa.store import failures, journal, landscape

FEW = CONFIGS[:40]


def replay(trials: list[Trial], tmp_path: Path, **changes: Any) -> Result:
    """A search of FEW and one more in these trials."""
    found = landscape.load(compressed(trials, tmp_path / "some.jsonl.xz"))
    asked = request(budget=Budget(trials=len(FEW) + 1), measured=True, strategy="grid")
    return search.search(replace(asked, replay=found, **changes), user_store())


def test_a_replayed_search_finds_the_best_and_keeps_nothing(tmp_path: Path) -> None:
    trials = [trial(config, 100.0 + place) for place, config in enumerate(FEW)]
    trials[7] = trial(FEW[7], 50.0)
    result = replay([*trials, raced(trials[7], *[51.0] * 6)], tmp_path)
    assert result.record is not None and result.stored is None
    assert user_store().records() == []
    assert result.record.config == FEW[7] and result.record.median_us == 51.0
    assert result.record.objective == "replayed"
    # It was made with what the landscape was made with, not with what is here.
    assert result.record.provenance["source_hash"] == "0123abcd"
    assert "replayed" in (result.record.certificate or {})["decision"]


@pytest.mark.parametrize("strategy", ["grid", "auto"])
def test_what_the_landscape_does_not_hold_is_not_tried(tmp_path: Path, strategy: str) -> None:
    """A sampled landscape holds a part of the space, perhaps without the default."""
    held = FEW[1:9:2]
    result = replay([trial(config, 100.0) for config in held], tmp_path, strategy=strategy)
    assert {identity(f.trial.config) for f in result.finished} == set(map(identity, held))
    assert all(f.trial.outcome == "ok" for f in result.finished)
    (found,) = result.feasible.values()
    missing = found.refused["the landscape that is replayed must hold the config"]
    assert missing == len(CONFIGS) - len(held)


def test_the_recorded_race_decides_and_not_the_screening(tmp_path: Path) -> None:
    fast, faster = trial(FEW[0], 90.0), trial(FEW[1], 91.0)
    races = [raced(fast, *[95.0] * 6), raced(faster, *[92.0] * 6)]
    result = replay([fast, faster, *races], tmp_path)
    assert result.record is not None and result.record.config == FEW[1]
    top = result.top(2)
    assert [f.trial.median_us for f in top] == [92.0, 95.0]


def test_a_finalist_that_was_found_wrong_does_not_win(tmp_path: Path) -> None:
    wrong = Trial(FEW[0], "wrong", "not on the real shape")
    result = replay([trial(FEW[0], 50.0), trial(FEW[1], 60.0), wrong], tmp_path)
    assert result.record is not None and result.record.config == FEW[1]
    assert "wrong" in {f.trial.outcome for f in result.finished}
    assert replay([trial(FEW[0], 50.0), wrong], tmp_path).record is None


def test_a_strategy_is_told_the_screening(tmp_path: Path) -> None:
    screened = trial(FEW[0], 100.0)
    path = compressed([screened, raced(screened, *[120.0] * 6)], tmp_path / "l.jsonl.xz")
    with Replayed(landscape.load(path), KERNEL) as objective:
        objective.submit(FEW[1])
        objective.submit(FEW[0])
        assert objective.next().outcome == "refused"
        assert objective.next() == screened


def test_its_journal_says_replayed_and_its_failures_are_not_this_machines(tmp_path: Path) -> None:
    result = replay([trial(FEW[0], 100.0), Trial(FEW[1], "crashed", "boom")], tmp_path)
    assert journal.header(result.journal)["objective"] == "replayed"
    assert failures.failures() == []


def test_a_predicted_search_replays_without_a_check(tmp_path: Path) -> None:
    result = replay([trial(FEW[0])], tmp_path, measured=False)
    assert result.record is not None and result.record.objective == "replayed"
    assert result.record.median_us == 50.0
