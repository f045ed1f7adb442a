"""tunefa/compile/pool.py: configs whose compiling is begun before a search asks for them."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from tests.support.fake_objective import KERNEL, request
from tests.support.processes import Shared
from tunefa.compile import pool
from tunefa.compile.pool import CompilePool, Rank
from tunefa.measure import launches
from tunefa.spec.workload import Workload

CASE = request().case(KERNEL)


def test_what_was_begun_before_is_compiled_once() -> None:
    tasks: list[Any] = []

    def submit(*task: Any) -> Future[Any]:
        tasks.append(task)
        return Future()

    shared: Any = Shared(count=1, lasting=True, apart=True, submit=submit)
    CompilePool(CASE, processes=shared).begin({"A": 1})
    assert tasks[0][-1] > 0, "after what searches with the GPU wait for"
    own = CompilePool(CASE, processes=shared)
    found = own.submit({"A": 1}, Rank.LATER)
    assert len(tasks) == 1
    own.submit({"A": 1})
    own.begin({"A": 2})
    assert len(tasks) == 3, "what was asked for is compiled anew, and so is another config"
    other: Any = Shared(count=1, lasting=True, apart=True, submit=submit)
    assert CompilePool(CASE, processes=other).submit({"A": 2}).future is not found.future
    assert len(tasks) == 4, "other processes know nothing of it"


def test_what_nothing_asks_for_is_dropped_and_not_compiled() -> None:
    made: list[Future[Any]] = []

    def submit(*_: Any) -> Future[Any]:
        made.append(Future())
        return made[-1]

    shared: Any = Shared(count=1, lasting=True, apart=True, submit=submit)
    own = CompilePool(CASE, processes=shared)
    other = CompilePool(replace(CASE, workload=Workload.parse("q512")), processes=shared)
    for each in (own, other):
        each.begin({"A": 1})
    pool.forget(shared, [CASE])
    assert made[0].cancelled() and not made[1].cancelled()
    assert other.submit({"A": 1}).future is made[1] and len(made) == 2
    assert own.submit({"A": 1}).future is made[2]


def test_what_was_begun_for_another_check_is_not_the_same() -> None:
    made = iter([first := Future[Any](), second := Future[Any]()])
    shared: Any = Shared(count=1, lasting=True, apart=True, submit=lambda *_: next(made))
    CompilePool(CASE, None, None, shared).begin({"A": 1})
    assert (
        CompilePool(CASE, None, launches.shape_to_check, shared).submit({"A": 1}).future is second
    )
    assert CompilePool(CASE, None, None, shared).submit({"A": 1}).future is first


def test_what_was_begun_and_stopped_is_compiled_anew() -> None:
    made = [Future[Any](), Future[Any]()]
    left = iter(made)
    shared: Any = Shared(count=1, lasting=True, apart=True, submit=lambda *_: next(left))
    own = CompilePool(CASE, processes=shared)
    own.begin({"A": 1})
    made[0].cancel()
    assert own.submit({"A": 1}).future is made[1]


def test_a_default_comes_before_other_configs_that_can_wait() -> None:
    ranks: list[int] = []

    def submit(task: Any, arguments: Any, limit_s: float, rank: int) -> Future[Any]:
        ranks.append(rank)
        return Future()

    hurried: list[Any] = []
    shared: Any = Shared(count=1, lasting=True, apart=True, submit=submit, hurry=hurried.append)
    own, default = CompilePool(CASE, processes=shared), CASE.default()
    own.begin(default)
    other = {**default, "num_warps": 2 * default["num_warps"]}
    waiting = own.submit(other, Rank.LATER)
    own.submit(other)
    assert ranks == [1, 2, 0]
    own.hurry(waiting)
    assert hurried == [waiting.future]
    waiting.future.set_result(("ok", None, 0.1, ""))
    own.hurry(waiting)
    assert len(hurried) == 1, "it is compiled"
    found = own.submit(default)
    assert len(ranks) == 3 and hurried[1:] == [found.future], "what was begun cannot wait now"
