"""tunefa/sweep/study.py: the study that all workers of a sweep share."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from tests.support.sweeping import made, plan
from tunefa.errors import TunefaError
from tunefa.sweep import study
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.study import SweepStudy

ME = HostProcess.here("worker 1")


def test_a_worker_that_knows_the_address_finds_it_all(tmp_path: Path) -> None:
    held = made(tmp_path)
    held.note("budget", {"seconds": 3.0})
    there = SweepStudy.found(held.place, held.name)
    assert there.plan == plan() and there.notes["budget"] == {"seconds": 3.0}


def test_of_two_workers_that_claim_a_workload_one_has_it(tmp_path: Path) -> None:
    held = made(tmp_path)
    got: list[object] = []

    def claim() -> None:
        got.append(SweepStudy.found(held.place, held.name).claim("k", 5.0, ME))

    threads = [threading.Thread(target=claim) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each is not None for each in got) == 1
    running = [each for each in held.slices() if each.is_running]
    assert len(running) == 1 and running[0].key == "k"
    assert not any(each.counts for each in held.slices() if not each.is_running)


def test_a_slice_ends_once(tmp_path: Path) -> None:
    held = made(tmp_path)
    claimed = held.claim("k", 5.0, ME)
    assert claimed is not None and held.claim("k", 5.0, ME) is None
    held.say(claimed, "beat", {"at": 1.0})
    held.complete(claimed, {"best_us": 7.0})
    held.fail(claimed, "too late")
    held.say(claimed, "beat", {"at": 2.0})
    first = held.slices()[0]
    assert first.found is not None and first.found["best_us"] == 7.0 and first.lost == ""
    assert first.beat == {"at": 1.0} and not first.is_running
    trial = optuna.load_study(study_name=held.name, storage=held.storage).best_trial
    assert trial.value == 7.0  # Optuna's tools can read it
    nothing = held.claim("k", 5.0, ME)
    assert nothing is not None
    held.complete(nothing, {"best_us": None})
    assert not held.slices()[-1].is_running


def test_the_newest_with_the_same_question_is_found() -> None:
    asked = [plan(), plan(seed=1), plan()]
    for each in asked:
        name = study.new_name(each)
        SweepStudy.made(study.address(None, name), each, name)
    newest = study.newest(None, plan().digest)
    assert newest is not None and newest.plan == plan()
    assert newest.name == max(p.stem for p in study.folder().glob(f"*{plan().digest}.log"))
    assert study.newest(None, "00000000") is None
    of_any = study.newest(None, "")
    assert of_any is not None and of_any.name == newest.name


def test_in_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sweeps.db'}"
    assert study.newest(url, "") is None
    name = study.new_name(plan())
    held = SweepStudy.made(study.address(url, name), plan(), name)
    assert held.claim("k", 5.0, ME) is not None and held.claim("k", 5.0, ME) is None
    found = study.newest(url, plan().digest)
    assert found is not None and found.name == name and len(found.slices()) == 2


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("postgresql://user:secret@127.0.0.1:1/none", "cannot be opened"),
        ("nonsense://here", "cannot be opened"),
        ("/proc/study.log", "cannot be used"),
        ("/proc/no/such/study.log", "there is no folder /proc/no/such"),
    ],
)
def test_a_storage_that_cannot_be_reached(place: str, says: str) -> None:
    with pytest.raises(TunefaError, match=says) as caught:
        SweepStudy.made(place, plan(), "s")
    assert "secret" not in str(caught.value)


def test_a_file_that_is_no_study(tmp_path: Path) -> None:
    path = tmp_path / "study.log"
    path.write_text("nonsense\n{}\n")
    with pytest.raises(TunefaError, match=r"is no study of Optuna|cannot be used"):
        SweepStudy.found(str(path), "s")


def test_a_study_without_a_plan(tmp_path: Path) -> None:
    held = made(tmp_path)
    held.note("plan", {"weights": 3})
    with pytest.raises(TunefaError, match="holds no plan that this tunefa can read"):
        _ = replace(held).plan
