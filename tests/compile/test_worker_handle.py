"""tunefa/compile/worker_handle.py: one worker process, and how its end is told."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import TimeoutError
from multiprocessing.connection import Pipe

import pytest

from tests.support.processes import gone
from tunefa.compile.place import Place
from tunefa.compile.worker_handle import ProcessLost, Stopped, TaskRaised, WorkerHandle
from tunefa.errors import TunefaError

LIMIT_S = 30.0


class NotThere:
    """An object of a type that only the worker can make again."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _made_in, (os.getpid(),)


def _made_in(pid: int) -> int:
    assert pid == os.getpid(), "not in this process"
    return pid


def not_there() -> NotThere:
    return NotThere()


def user_error() -> None:
    raise TunefaError("name another one")


@pytest.fixture
def worker() -> Iterator[WorkerHandle]:
    reader, writer = Pipe(duplex=False)
    with writer, WorkerHandle(reader, None, Place()) as made:
        yield made


def test_it_runs_one_task_after_the_other(worker: WorkerHandle) -> None:
    pid = worker.run(os.getpid, (), LIMIT_S)
    assert pid == worker.run(os.getpid, (), LIMIT_S) != os.getpid()
    assert worker.run(max, (3, 7), LIMIT_S) == 7


def test_errors_of_a_task_are_told_apart(worker: WorkerHandle) -> None:
    with pytest.raises(TunefaError, match=r"^name another one$"):
        worker.run(user_error, (), LIMIT_S)
    with pytest.raises(TaskRaised, match=r"^ZeroDivisionError: "):
        worker.run(divmod, (1, 0), LIMIT_S)
    with pytest.raises(TaskRaised, match="its result cannot be read: not in this process"):
        worker.run(not_there, (), LIMIT_S)
    assert worker.run(max, (3, 7), LIMIT_S) == 7, "it goes on"


def test_its_end_is_told(worker: WorkerHandle) -> None:
    with pytest.raises(ProcessLost, match=r"^died with exit code 3$"):
        worker.run(os._exit, (3,), LIMIT_S)


def test_a_limit_and_a_stop_end_the_wait() -> None:
    reader, writer = Pipe(duplex=False)
    with WorkerHandle(reader, None, Place()) as made:
        pid = made.run(os.getpid, (), LIMIT_S)
        with pytest.raises(TimeoutError):
            made.run(time.sleep, (60,), 0.1)
        writer.close()
        with pytest.raises(Stopped):
            made.run(time.sleep, (60,), LIMIT_S)
    assert gone(pid)


def test_it_has_the_variables_of_its_place() -> None:
    place = Place({"TUNEFA_TEST_PLACE": "here"})
    reader, writer = Pipe(duplex=False)
    with writer, WorkerHandle(reader, None, place) as made:
        assert made.run(os.getenv, ("TUNEFA_TEST_PLACE",), LIMIT_S) == "here"
        os.kill(made.run(os.getpid, (), LIMIT_S), signal.SIGKILL)
        with pytest.raises(ProcessLost, match=r"^died with exit code -9$"):
            made.run(time.sleep, (0,), LIMIT_S)
