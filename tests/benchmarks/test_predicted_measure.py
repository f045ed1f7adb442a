"""benchmarks/predicted/measure.py: what races, and what is said of it; there is no device."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from benchmarks.predicted import measure
from benchmarks.predicted.measure import Session
from tests.support.own_kernels import OwnKernels
from tests.support.sample_predictions import OnDevice, kernels, prediction
from tunefa.compile.workers import Workers
from tunefa.measure import measured
from tunefa.measure.measured import LostProcess
from tunefa.measure.race import Race
from tunefa.search.budget import Budget
from tunefa.search.request import Processes
from tunefa.spec.target import Target

ALL = Budget(trials=200)


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch, no_waiting_for_the_disk: None) -> type[OnDevice]:
    """A class of this test's own, in place of the objective that measures."""

    class Own(OnDevice):
        given, tried = [], []
        slower, outcomes = {}, {}

    monkeypatch.setattr(measured, "gpu_objective", lambda mode: Own)
    return Own


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(Target.named("h200"), Processes(Workers(1), Workers(2)), tmp_path / "results")


def test_all_answers_race_each_config_once(
    own_kernels: OwnKernels, on_device: type[OnDevice], session: Session
) -> None:
    kernels(own_kernels, "once_a", "once_b")
    on_device.slower["once_b"] = 2.0
    row = session.measured(prediction("once_a", "once_b"), ALL)
    assert [(each.kernel, each.config["DELAY"], each.roles) for each in row.racers] == [
        ("once_a", 3, ["search"]),
        ("once_a", 2, ["predicted"]),
        ("once_a", 5, ["runtime", "default"]),
        ("once_b", 5, ["default of once_b"]),
    ]
    assert [round(each.excess, 6) for each in row.racers] == [0.0, 0.1, 0.2, 1.4]
    assert row.racers[1].median_us == pytest.approx(110.0 * 1.055)
    assert row.left_out == {} and row.race == {"rounds": 12, "noise_floor": 0.001}
    assert row.search["trials"] == {"once_a": 8, "once_b": 8}
    assert row.made_with["device"] == "NVIDIA H200" and row.made_with["triton"]
    processes = session.processes.bench, session.processes.compilers
    assert {given[1:] for given in on_device.given if len(given) > 2} == {processes}
    assert len(on_device.tried) == 16, "what the search tried is not tried again"


def test_a_winner_that_nobody_predicted_is_the_search_s_and_of_its_own_workload(
    own_kernels: OwnKernels, on_device: type[OnDevice], session: Session
) -> None:
    kernels(own_kernels, "alone_a", "alone_b")
    row = session.measured(prediction("alone_a", "alone_b", winner=3), ALL)
    assert row.racers[0].roles == ["search", "predicted"] and row.racers[0].excess == 0.0
    assert [path.name for path in (session.folder).iterdir()] == [row.workload]


def test_an_answer_that_the_search_did_not_try_is_checked_before_it_races(
    own_kernels: OwnKernels, on_device: type[OnDevice], session: Session
) -> None:
    kernels(own_kernels, "untried_a", "untried_b")
    row = session.measured(prediction("untried_a", "untried_b", winner=7), Budget(trials=2))
    assert on_device.tried[-1] == ("untried_a", 7) and len(on_device.tried) == 3
    assert row.racer("predicted") is not None and row.racer("search") is not None


def test_an_answer_that_is_wrong_does_not_race(
    own_kernels: OwnKernels, on_device: type[OnDevice], session: Session
) -> None:
    kernels(own_kernels, "wrong_a", "wrong_b")
    on_device.outcomes[2] = "wrong"
    row = session.measured(prediction("wrong_a", "wrong_b"), ALL)
    assert row.left_out == {"predicted": "wrong: because"} and row.racer("predicted") is None
    assert row.racers[0].roles == ["search"] and len(row.racers) == 3
    on_device.outcomes.update(dict.fromkeys(range(1, 9), "crashed"))
    with pytest.raises(ValueError, match="predicted: crashed: because"):
        session.measured(prediction("wrong_a", "wrong_b"), ALL)


def test_a_race_that_was_lost_is_an_error(
    own_kernels: OwnKernels,
    on_device: type[OnDevice],
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels(own_kernels, "lost_a", "lost_b")

    def lost(*_: Any) -> LostProcess:
        return LostProcess("timeout", "running took over 120 s")

    monkeypatch.setattr(on_device, "race_kernels", lost)
    with pytest.raises(ValueError, match="the race was lost: running took over 120 s"):
        session.measured(prediction("lost_a", "lost_b"), ALL)


def test_the_best_is_the_one_that_no_other_beats_in_their_rounds() -> None:
    """One lucky round in the middle gives the second the least median; the last is the first."""
    race = Race(4)
    race.samples_us = [[us, 1.01 * us, 40.0, us] for us in [10.0] * 6 + [20.0] * 6]
    race.samples_us[6][1] = 12.0
    assert race.leader == 1
    apart = [each.estimate for each in measure.compared(race)]
    assert apart == [0.0, pytest.approx(0.01), pytest.approx(1.667, abs=0.4)]
    race.dropped[0] = 12
    assert measure.compared(race)[1].estimate == 0.0


def test_what_was_predicted_is_compiled_ahead_each_config_once(
    own_kernels: OwnKernels,
    on_device: type[OnDevice],
    session: Session,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels(own_kernels, "ahead_a", "ahead_b")
    asked = []

    class Pool:
        def __init__(self, case: Any, also: Any, processes: Workers) -> None:
            assert processes is session.processes.compilers
            self.name = case.kernel.name

        def submit(self, config: Any) -> Any:
            asked.append((self.name, config["DELAY"]))
            return Pending()

    class Pending:
        future: Future[None] = Future()
        future.set_result(None)

    monkeypatch.setattr(measure, "CompilePool", Pool)
    assert session.warm_up([prediction("ahead_a", "ahead_b")], 1.0) == 3
    assert asked == [("ahead_a", 2), ("ahead_a", 5), ("ahead_b", 5)]
