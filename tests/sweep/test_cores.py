"""tunefa/sweep/cores.py: who runs on which cores."""

from __future__ import annotations

import os

import pytest

from tunefa.sweep import cores
from tunefa.sweep.cores import shares


@pytest.mark.parametrize(
    ("workers", "count", "own", "free", "processes"),
    [
        (1, 16, 3, 13, 13),
        (2, 32, 3, 26, 26),  # each may use what the other leaves idle
        (8, 128, 3, 104, 26),
        (1, 11, 2, 9, 9),
        (2, 4, 1, 2, 2),
        (1, 2, 1, 1, 1),
    ],
)
def test_a_gpu_has_cores_of_its_own(
    workers: int, count: int, own: int, free: int, processes: int
) -> None:
    made = shares(workers, range(count), measured=True, limit=None)
    assert [len(each.own) for each in made] == [own] * workers
    assert all(len(each.compilers) == free and each.processes == processes for each in made)
    everything = [core for each in made for core in each.own]
    assert len(set(everything)) == len(everything)
    assert not set(everything) & made[0].compilers


def test_with_fewer_than_two_cores_for_each_none_has_its_own() -> None:
    (each, *_) = shares(2, range(3), measured=True, limit=None)
    assert each.own == each.compilers == frozenset() and each.processes == 3


def test_predictions_share_all_cores() -> None:
    made = shares(3, range(8), measured=False, limit=None)
    assert [each.processes for each in made] == [3, 3, 2]
    assert all(each.own == each.compilers == frozenset() for each in made)
    assert [each.processes for each in shares(2, range(8), False, 3)] == [2, 1]
    assert [each.processes for each in shares(3, range(1), False, None)] == [1, 1, 1]


def test_a_limit_is_for_all_compilers() -> None:
    assert [each.processes for each in shares(2, range(32), True, 5)] == [5, 5]
    assert [each.processes for each in shares(4, range(32), True, 4)] == [2, 2, 2, 2]


def test_the_cores_of_this_process() -> None:
    assert cores.available() and cores.available() == sorted(set(cores.available()))


@pytest.mark.parametrize("number", range(4))
def test_a_worker_that_knows_no_others_has_the_cores_of_its_gpu(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Each has those that it would have if one process had shared them out."""
    monkeypatch.setattr(cores, "available", lambda: list(range(64)))
    made = cores.of_gpu(str(number), 4, None)
    assert made == shares(4, range(64), True, None)[number]
    assert len(made.own) == 3 and made.processes == 26
    assert cores.of_gpu(str(number), 4, 5) == shares(4, range(64), True, 5)[number]


@pytest.mark.parametrize("number", ["", "GPU-8a3f", "4", "0,1", "-1"])
def test_where_the_gpu_is_not_known_it_has_a_part_of_all_cores(
    monkeypatch: pytest.MonkeyPatch, number: str
) -> None:
    monkeypatch.setattr(cores, "available", lambda: list(range(64)))
    assert cores.of_gpu(number, 4, None) == cores.Share(processes=16)
    assert cores.of_gpu(number, 0, None) == cores.Share(processes=64)
    assert cores.of_gpu(number, 4, 8) == cores.Share(processes=2)


def test_whether_cores_were_chosen_for_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for count, ours in ((8, False), (3, True)):
        monkeypatch.setattr(cores, "available", lambda: list(range(count)))  # noqa: B023
        assert cores.are_ours() == ours
    monkeypatch.delenv("SLURM_JOB_ID")
    assert not cores.are_ours(), "another container with fewer cores may be on the same ones"
