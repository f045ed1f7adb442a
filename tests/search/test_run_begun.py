"""tunefa/search/run.py with compilers that began before it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from tests.support.fake_objective import KERNEL, Fake, request, user_store
from tests.support.processes import Shared
from tunefa.compile.pool import CompilePool
from tunefa.compile.workers import Workers
from tunefa.search import run as search
from tunefa.search.request import Processes


def test_what_was_begun_and_not_asked_for_ends_with_its_search(fake: type[Fake]) -> None:
    asked, waiting = request(), Future[Any]()
    compilers: Any = Shared(count=1, lasting=True, apart=True, submit=lambda *_: waiting)
    CompilePool(asked.case(KERNEL), processes=compilers).begin({"A": 1})
    search.search(asked, user_store(), shared=Processes(Workers(1), compilers))
    assert waiting.cancelled()
