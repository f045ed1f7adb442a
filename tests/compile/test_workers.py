"""tunefa/compile/workers.py: processes that crash, hang and are orphaned, for real."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, TimeoutError
from pathlib import Path

import pytest

from tests.support.processes import gone
from tunefa.compile import workers as workers_module
from tunefa.compile.workers import Later, ProcessLost, Workers

LIMIT_S = 30.0


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(1)
    yield made
    made.stop()


def pid_of(workers: Workers) -> int:
    return workers.submit(os.getpid, (), LIMIT_S).result()


def test_a_crash_costs_one_task_and_the_next_has_a_new_process(workers: Workers) -> None:
    first = pid_of(workers)
    with pytest.raises(ProcessLost, match=f"^died with exit code {-signal.SIGSEGV}$"):
        workers.submit(ctypes.string_at, (0,), LIMIT_S).result()
    assert pid_of(workers) != first


def test_a_hang_ends_at_its_limit(workers: Workers) -> None:
    first = pid_of(workers)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        workers.submit(time.sleep, (60,), 1.0).result()
    assert time.monotonic() - start < 20
    assert gone(first) and pid_of(workers) != first


def test_renewed_workers_are_new_processes(workers: Workers) -> None:
    first = pid_of(workers)
    workers.renew()
    assert gone(first) and pid_of(workers) != first


def test_tasks_are_taken_while_workers_are_renewed(workers: Workers) -> None:
    first, stop = pid_of(workers), workers._crew.stop
    ending, may_end = threading.Event(), threading.Event()

    def slow_stop() -> None:
        ending.set()
        assert may_end.wait(LIMIT_S)
        stop()

    workers._crew.stop = slow_stop  # type: ignore[method-assign]
    renewing = threading.Thread(target=workers.renew, daemon=True)
    renewing.start()
    assert ending.wait(LIMIT_S)
    assert pid_of(workers) != first and not gone(first, within_s=0.2)
    may_end.set()
    renewing.join(LIMIT_S)
    assert gone(first) and not gone(pid_of(workers), within_s=0.2)


def test_tasks_that_no_worker_has_begun_are_cancelled(workers: Workers) -> None:
    begun = workers.submit(time.sleep, (60,), LIMIT_S)
    while not begun.running():
        time.sleep(0.01)
    waiting = workers.submit(os.getpid, (), LIMIT_S)
    workers.renew()
    assert waiting.cancelled()
    assert isinstance(begun.exception(), CancelledError)


def not_before(path: str) -> str | Later:
    """Can be done once the file is there."""
    return "done" if os.path.exists(path) else Later()


def test_a_task_that_cannot_be_done_yet_leaves_its_worker_to_others(
    workers: Workers, tmp_path: Path
) -> None:
    path = tmp_path / "there"
    early = workers.submit(not_before, (str(path),), LIMIT_S)
    for _ in range(3):
        assert pid_of(workers), "others are done meanwhile"
        time.sleep(workers_module._LATER_S)
    assert not early.done()
    path.touch()
    assert early.result(LIMIT_S) == "done"
    both = [workers.submit(time.sleep, (0.5,), LIMIT_S) for _ in range(2)]
    assert all(each.result(LIMIT_S) is None for each in both), "it counts as one idle worker"


@pytest.mark.parametrize("method", ["stop", "renew"])
def test_a_task_that_waits_to_be_done_again_is_cancelled(
    workers: Workers, tmp_path: Path, method: str
) -> None:
    early = workers.submit(not_before, (str(tmp_path / "never"),), LIMIT_S)
    while not early.running():
        time.sleep(0.01)
    getattr(workers, method)()
    assert isinstance(early.exception(LIMIT_S), CancelledError)


def test_a_task_is_not_lost_where_no_thread_is_left(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = threading.Event()

    def start(self: threading.Timer) -> None:
        asked.set()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", start)
    path = tmp_path / "there"
    early = workers.submit(not_before, (str(path),), LIMIT_S)
    assert asked.wait(LIMIT_S)
    path.touch()
    assert early.result(LIMIT_S) == "done"


def never(path: str) -> Later:
    """Can never be done."""
    return Later(os.path.basename)


def test_a_task_that_cannot_be_done_for_long_is_replaced(workers: Workers) -> None:
    start = time.monotonic()
    assert workers.submit(never, ("a/b",), 1.0).result(LIMIT_S) == "b"
    assert time.monotonic() - start > 1.0


def test_tasks_of_a_lower_rank_come_first_and_one_may_be_hurried(
    workers: Workers, tmp_path: Path
) -> None:
    started, may_end = tmp_path / "started", tmp_path / "may end"
    first = workers.submit(hold, (str(started), str(may_end)), LIMIT_S)
    while not started.exists():
        time.sleep(0.01)
    order: list[str] = []
    made = []
    for name, rank in (("slow", 2), ("hurried", 2), ("default", 1), ("now", 0)):
        future = workers.submit(os.getpid, (), LIMIT_S, rank)
        future.add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
        made.append(future)
    workers.hurry(made[1])
    workers.hurry(first)  # which has begun
    may_end.touch()
    for future in made:
        future.result(LIMIT_S)
    assert order == ["hurried", "now", "default", "slow"], "it was asked for before the other one"


def test_a_task_that_cannot_be_done_yet_may_be_hurried(workers: Workers, tmp_path: Path) -> None:
    started, may_end, path = (tmp_path / name for name in ("started", "may end", "there"))
    early = workers.submit(not_before, (str(path),), LIMIT_S, 2)
    while not early.running():
        time.sleep(0.01)
    workers.hurry(early)
    workers.submit(hold, (str(started), str(may_end)), LIMIT_S)
    while not started.exists():
        time.sleep(0.01)
    order: list[str] = []
    early.add_done_callback(lambda _: order.append("hurried"))
    other = workers.submit(os.getpid, (), LIMIT_S, 1)
    other.add_done_callback(lambda _: order.append("other"))
    time.sleep(2 * workers_module._LATER_S)  # it waits for the worker again
    path.touch()
    may_end.touch()
    assert early.result(LIMIT_S) == "done" and other.result(LIMIT_S)
    while len(order) < 2 or workers._crew.unfinished:  # callbacks come after the result
        time.sleep(0.01)
    assert order == ["hurried", "other"]


def hold(started: str, may_end: str) -> None:
    Path(started).touch()
    while not os.path.exists(may_end):
        time.sleep(0.01)
