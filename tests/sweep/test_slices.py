"""tunefa/sweep/slices.py: slices as the study knows them, and lost workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from optuna.trial import TrialState, create_trial

from tests.support.clock import Clock
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.slices import GONE_S, LOST_S, Slice, Watch

ELSEWHERE = HostProcess("elsewhere", 1, "2", "GPU 0")


def running(worker: HostProcess, **beat: object) -> Slice:
    attrs = {"item": "k", "amount": 5.0, "worker": worker.to_data(), "began": 1.0, "beat": beat}
    return Slice.of(create_trial(state=TrialState.RUNNING, value=None, user_attrs=attrs))


def test_a_slice_is_read_from_a_trial() -> None:
    found = {"best_us": 3.0, "ended": 11.0}
    made = Slice.of(create_trial(value=3.0, user_attrs={"item": "k", "began": 4.0, "found": found}))
    assert (made.key, made.is_running, made.found, made.took_s) == ("k", False, found, 7.0)
    assert made.counts and made.lost == ""
    assert running(ELSEWHERE).is_running and running(ELSEWHERE).took_s == 0.0


def test_a_process_of_this_host_is_lost_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, here = Clock().drive(monkeypatch), HostProcess.here()
    gone = replace(here, started="0")
    assert Watch().lost([running(here), running(gone)]) == [running(gone)]
    patient = Watch(GONE_S)
    assert patient.lost([running(here), running(gone)]) == []
    clock.now += GONE_S
    assert patient.lost([running(here), running(gone)]) == [running(gone)]


def test_one_of_another_host_is_lost_when_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock().drive(monkeypatch)
    watch = Watch()
    assert watch.lost([running(ELSEWHERE, at=1.0)]) == []
    clock.now += LOST_S - 1
    assert watch.lost([running(ELSEWHERE, at=1.0)]) == []
    assert watch.lost([running(ELSEWHERE, at=2.0)]) == []  # a sign of life
    clock.now += LOST_S + 1
    assert watch.lost([running(ELSEWHERE, at=2.0)]) == [running(ELSEWHERE, at=2.0)]
    ended = replace(running(ELSEWHERE, at=2.0), is_running=False)
    assert watch.lost([ended]) == []
