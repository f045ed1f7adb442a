"""tunefa/search/run.py with compilers that began before it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from tests.support.fake_objective import KERNEL, Fake, request, user_store
from tests.support.processes import Shared
from tunefa.compile.pool import CompilePool
from tunefa.compile.workers import Workers
from tunefa.search import run as search
from tunefa.search.budget import Budget
from tunefa.search.gpu_turns import Turns
from tunefa.search.request import Processes


def test_what_was_begun_and_not_asked_for_ends_with_its_search(fake: type[Fake]) -> None:
    asked, waiting = request(), Future[Any]()
    compilers: Any = Shared(count=1, lasting=True, apart=True, submit=lambda *_: waiting)
    CompilePool(asked.case(KERNEL), processes=compilers).begin({"A": 1})
    search.search(asked, user_store(), shared=Processes(Workers(1), compilers))
    assert waiting.cancelled()


def test_the_last_search_has_all_that_is_left(fake: type[Fake]) -> None:
    compilers: Any = Shared(count=1, lasting=True, apart=True, submit=lambda *_: Future[Any]())
    for left_s, expected_s in ((2.5, 2.5), (9.0, 2.0)):
        turn = Turns(lambda left_s=left_s: left_s, least_s=2.0).new("a", 1.0)  # type: ignore[misc]
        shared = Processes(Workers(1), compilers, turn=turn)
        asked = replace(request(), budget=Budget(seconds=1.0), strategy="random")
        result = search.search(asked, user_store(), shared=shared)
        assert result.request.budget.seconds == expected_s
