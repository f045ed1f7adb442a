"""tunefa/compile/place.py: the variables and the cores of worker processes."""

from __future__ import annotations

import os

import pytest

from tunefa.compile.place import Place
from tunefa.compile.workers import Workers

LIMIT_S = 30.0


def test_workers_have_variables_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFA_TEST_KEPT", "1")
    with Workers(1, place=Place({"CUDA_VISIBLE_DEVICES": "3"})) as workers:
        seen = workers.submit(os.getenv, ("CUDA_VISIBLE_DEVICES",), LIMIT_S).result()
        kept = workers.submit(os.getenv, ("TUNEFA_TEST_KEPT",), LIMIT_S).result()
    assert (seen, kept) == ("3", "1") and os.environ.get("CUDA_VISIBLE_DEVICES") != "3"


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no such choice")
def test_workers_run_on_their_cores_only() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    with Workers(1, place=Place(cores=frozenset({core}))) as workers:
        assert workers.submit(os.sched_getaffinity, (0,), LIMIT_S).result() == {core}
        assert workers.apart
    assert os.sched_getaffinity(0) == before and not Workers(1).apart
    with Workers(1, place=Place(cores=frozenset({10**6}))) as workers:  # there is no such core
        assert workers.submit(os.sched_getaffinity, (0,), LIMIT_S).result() == before
