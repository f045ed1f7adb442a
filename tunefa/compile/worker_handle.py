"""A worker process, as the process that has started it sees it: it starts it, gives it tasks one by
one, and ends it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import TimeoutError
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from tunefa.compile.place import Place
from tunefa.compile.worker_process import TOO_MUCH_MEMORY, Raised
from tunefa.errors import TunefaError

_START_LIMIT_S = 60.0
"""The time limit for a worker to start, which takes 0.1 s on an idle machine."""
_END_S = 10.0
"""The time that a keeper has to end its processes, before it is killed itself."""
_PROGRAM = (
    "import sys; sys.path[:] = {path!r}; "
    "from tunefa.compile.worker_process import main; main({descriptor}, {parent}, {memory_bytes})"
)


class ProcessLost(Exception):
    """A worker ended before its task did. The message says how: "died with exit code -11"."""


class TaskRaised(Exception):
    """A task raised an exception, which the message names. Its traceback is that of the cause."""


class Stopped(Exception):
    """Nothing should wait for the worker any more."""


class WorkerHandle:
    """One worker. A context manager, which ends it."""

    def __init__(self, stop: Connection, memory_bytes: int | None, place: Place) -> None:
        """Starts it. `stop` is ready when nothing should wait for the worker any more."""
        place.enter()
        self._stop, self._memory_bytes = stop, memory_bytes
        self._connection, theirs = Pipe()
        code = _PROGRAM.format(
            path=[str(each) for each in sys.path],
            descriptor=theirs.fileno(),
            parent=os.getpid(),
            memory_bytes=memory_bytes,
        )
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", code],
                    stdin=subprocess.DEVNULL,
                    env={**os.environ, **place.environment},
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # a terminal's Ctrl-C does not reach it
                )
            except OSError as error:
                self._connection.close()
                raise ProcessLost(f"could not be started: {error}") from error
        self._is_ready = False

    def __enter__(self) -> WorkerHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._connection.close()

    def run(self, task: Callable[..., Any], arguments: tuple[Any, ...], limit_s: float) -> Any:
        """Returns what a task, a function of a module, returns within a limit in seconds.

        Raises what the future of `Workers.submit` raises, and Stopped.
        """
        question = pickle.dumps((task, arguments))
        if not self._is_ready:
            self._receive(_START_LIMIT_S)
            self._is_ready = True
        try:
            self._connection.send_bytes(question)
        except OSError as error:
            raise self._lost() from error
        answer = _read(self._receive(limit_s))
        if not isinstance(answer, Raised):
            return answer
        if answer.is_users:
            raise TunefaError(answer.reason)
        raise TaskRaised(answer.reason) from Exception(answer.traceback)

    def _receive(self, limit_s: float) -> bytes:
        ready = wait([self._connection, self._stop], limit_s)
        if self._stop in ready:
            raise Stopped
        if not ready:
            raise TimeoutError
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def _lost(self) -> ProcessLost:
        """The error for a worker that has closed its end of the connection: it has ended."""
        try:
            code = self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            return ProcessLost("closed its connection")
        if code == -TOO_MUCH_MEMORY and self._memory_bytes is not None:
            return ProcessLost(f"held over {self._memory_bytes / 2**30:.1f} GiB of memory")
        return ProcessLost(f"died with exit code {code}")


def _read(answer: bytes) -> Any:
    """Reads the pickled result of a task, whose types may be known in the worker only."""
    try:
        return pickle.loads(answer)
    except Exception as error:
        raise TaskRaised(f"its result cannot be read: {error}") from error
