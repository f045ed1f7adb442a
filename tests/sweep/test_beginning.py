"""tunefa/sweep/beginning.py: what begins with a worker's first workload."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.sweeping import begun_defaults, made, plan
from tunefa.compile.workers import Workers
from tunefa.search import preparation
from tunefa.search.model_process import ModelProcess
from tunefa.search.request import Processes
from tunefa.spec.target import Case
from tunefa.sweep import beginning, worker
from tunefa.sweep.requests import Items


class Model:
    """Remembers how many cases it began with, each time."""

    def __init__(self) -> None:
        self.begun: list[int] = []

    def begin(self, cases: list[Case]) -> None:
        self.begun.append(len(cases))


def test_the_defaults_of_a_workload_are_begun_at_its_first_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[int] = []
    monkeypatch.setattr(
        preparation, "begin_defaults", lambda cases, compilers: compiled.append(len(cases))
    )
    held, model = made(tmp_path, plan()), Model()
    item = Items.of(held.plan, worker.targets(held.plan)).items[0]
    shared: Any = Processes(Workers(1), Workers(1))
    for is_first in (True, False):
        beginning.begin(held.plan, item, shared, cast(ModelProcess, model), is_first)
    assert len(model.begun) == 2, "the model lists configs for each slice"
    assert compiled == model.begun[:1], "the second slice knows what became of them"


def test_compilers_that_are_left_begin_with_defaults_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = begun_defaults(monkeypatch)
    held, model = made(tmp_path, plan()), Model()
    first, *others = Items.of(held.plan, worker.targets(held.plan)).items
    for processes, is_first, expected in (
        (1, True, [1024]),
        (2, True, [1024, 512]),
        (9, True, [1024, 512, 256]),
        (3, False, [512, 256]),
    ):
        shared: Any = Processes(Workers(1), Workers(processes))
        beginning.begin(held.plan, first, shared, cast(ModelProcess, model), is_first, others)
        assert compiled == expected
        compiled.clear()
    assert model.begun == [1] * 4, "the model has the first one to do"
