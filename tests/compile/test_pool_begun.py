"""tunefa/compile/pool.py: configs whose compiling is begun before a search asks for them."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from tests.support.fake_objective import KERNEL, request
from tests.support.processes import Shared
from tunefa.compile.pool import CompilePool

CASE = request().case(KERNEL)


def test_what_was_begun_before_is_compiled_once() -> None:
    tasks: list[Any] = []

    def submit(*task: Any) -> Future[Any]:
        tasks.append(task)
        return Future()

    shared: Any = Shared(count=1, lasting=True, apart=True, submit=submit)
    CompilePool(CASE, processes=shared).begin({"A": 1})
    assert tasks[0][-1] is True, "after what searches with the GPU wait for"
    pool = CompilePool(CASE, processes=shared)
    found = pool.submit({"A": 1}, True)
    assert len(tasks) == 1
    pool.submit({"A": 1})
    pool.begin({"A": 2})
    assert len(tasks) == 3, "what was asked for is compiled anew, and so is another config"
    other: Any = Shared(**vars(shared))
    assert CompilePool(CASE, processes=other).submit({"A": 2}).future is not found.future
    assert len(tasks) == 4, "other processes know nothing of it"


def test_what_was_begun_and_stopped_is_compiled_anew() -> None:
    made = [Future[Any](), Future[Any]()]
    left = iter(made)
    shared: Any = Shared(count=1, lasting=True, apart=True, submit=lambda *_: next(left))
    pool = CompilePool(CASE, processes=shared)
    pool.begin({"A": 1})
    made[0].cancel()
    assert pool.submit({"A": 1}).future is made[1]
