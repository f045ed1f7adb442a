"""tunefa/sweep/processes.py: what a worker has, and what it begins with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.sweeping import made, plan
from tunefa.compile.workers import Workers
from tunefa.search import preparation
from tunefa.search.model_process import ModelProcess
from tunefa.search.request import Processes
from tunefa.spec.target import Case
from tunefa.sweep import processes, worker
from tunefa.sweep.cores import Share
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.requests import Items


class Model:
    """Remembers how many cases it began with, each time."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def begin(self, cases: list[Case]) -> None:
        self.begun.append(len(cases))


def test_nothing_is_shared_where_nothing_is_measured() -> None:
    asked = plan()
    assert not asked.measured
    with processes.shared(asked, Share()) as shared:
        assert shared is None


def test_the_defaults_of_a_workload_are_begun_at_its_first_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[int] = []
    monkeypatch.setattr(
        preparation, "begin_defaults", lambda cases, compilers: compiled.append(len(cases))
    )
    held, model = made(tmp_path, plan()), Model()
    item, other = Items.of(held.plan, worker.targets(held.plan)).items[:2]
    shared: Any = Processes(Workers(1), Workers(1))
    for key in (other.key, item.key, item.key):
        claimed = held.claim(key, 16.0, HostProcess.here())
        assert claimed is not None
        if key == item.key:
            processes.begin(held, item, shared, cast(ModelProcess, model))
        held.fail(claimed, "its worker was killed", counts=False)
    assert len(model.begun) == 2, "the model lists configs for each slice"
    assert compiled == model.begun[:1], "the second slice knows what became of them"
