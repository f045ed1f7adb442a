"""tunefa/search/state.py: what is counted of trials as they come, each config's last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fake_objective import request
from tunefa.search.budget import Budget
from tunefa.search.request import Progress
from tunefa.search.state import SearchState
from tunefa.spec.trial import Trial, time_us


class Lines:
    """In place of a journal: what was appended."""

    def __init__(self) -> None:
        self.path = Path("nowhere")
        self.kept: list[tuple[str, Trial]] = []

    def append(self, kernel: str, trial: Trial) -> None:
        self.kept.append((kernel, trial))


def state(reports: list[Progress] | None = None) -> SearchState:
    journal: Any = Lines()
    report = (lambda progress: None) if reports is None else reports.append
    storage = optuna.storages.InMemoryStorage()
    return SearchState(request(budget=Budget(trials=10)), report, journal, storage, None)


def trial(name: int, us: float | None) -> Trial:
    """A right one of `us`, or a crash."""
    if us is None:
        return Trial({"A": name}, "crashed", "because")
    return Trial({"A": name}, "ok", predicted_us=us)


def test_a_later_trial_of_a_config_replaces_the_earlier() -> None:
    found = state()
    for each in (trial(0, 5.0), trial(1, None), trial(1, 3.0)):
        found.count("k", each)
    assert (len(found.finished), found.failed, found.best) == (2, 0, trial(1, 3.0))
    found.count("k", trial(1, None))  # on the real shape it fails
    assert (found.failed, found.best) == (1, trial(0, 5.0))
    found.count("k", trial(0, 9.0))  # raced, it is slower
    assert found.best == trial(0, 9.0)


def test_the_same_config_of_two_kernels_is_two() -> None:
    found = state()
    found.count("a", trial(0, 5.0))
    found.count("b", trial(0, 4.0))
    assert found.trials_of("a") == [trial(0, 5.0)] and found.trials_of("b") == [trial(0, 4.0)]
    assert found.trials_of("c") == []


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.floats(1.0, 9.0)), max_size=20))
def test_counts_are_those_of_the_last_trials(made: list[tuple[int, float | None]]) -> None:
    found, last = state(), dict[int, Trial]()
    for name, us in made:
        last[name] = trial(name, us)
        found.count("k", last[name])
    right = [each for each in last.values() if each.outcome == "ok"]
    assert found.failed == len(last) - len(right)
    assert (found.best and time_us(found.best)) == min(map(time_us, right), default=None)


def test_what_is_kept_is_written_and_reported() -> None:
    reports: list[Progress] = []
    found = state(reports)
    found.count_earlier("k", [trial(0, 5.0), trial(1, None)])
    assert reports == [] and found.earlier == 2
    found.keep("k", trial(2, 4.0))
    found.stage = "race"
    found.keep("k", trial(2, 3.0))
    journal: Any = found.journal
    assert journal.kept == [("k", trial(2, 4.0)), ("k", trial(2, 3.0))]
    first, second = reports
    assert (first.done, first.failed, first.best, first.stage) == (3, 1, trial(2, 4.0), "search")
    assert (second.done, second.best, second.stage) == (3, trial(2, 3.0), "race")
    assert [first.fraction, first.earlier] == pytest.approx([0.3, 0.2])
