"""The two processes of a worker: one runs tasks, and its keeper ends it.

A task runs compilers and code from kernels/, which may hang in C, take all memory, or start
processes in sessions of their own. Its process cannot be relied on to end itself. So its parent is
a keeper: a small process that runs no such code. The keeper ends the task's process and all of its
descendants when tunefa's process dies, however that happens; when tunefa asks for it, by SIGTERM;
when they hold too much memory; and when the task's process ends. Then the keeper ends in the same
way as that process did.

On Linux, the system sends the keeper SIGTERM when tunefa dies, and the task's process SIGKILL when
the keeper dies. The keeper adopts processes whose parents have ended, so it also finds those in
other sessions. On other systems it looks twice a second whether tunefa still runs, ends the
processes of the task's group, and does not know how much memory they hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from tunefa import assets
from tunefa.errors import TunefaError

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_LOOK_S = 0.5
"""The time between two looks at the memory. A process can touch 1 GB of it meanwhile."""
_REST = 30.0
"""The least time between two looks, as a multiple of what the last one took: a machine may have
thousands of processes, and there is a keeper for each core."""
_END_S = 5.0
"""The time that killed processes have to end; a driver may hold one up."""
TOO_MUCH_MEMORY = signal.SIGUSR1
"""The signal by which a keeper ends that has ended processes for their memory."""


@dataclass(frozen=True)
class Raised:
    """The exception that a task has raised."""

    reason: str
    """The exception in one line, with the place in kernels/ that it came from. The message of a
    TunefaError stands alone."""
    traceback: str
    is_users: bool
    """Whether it is a TunefaError, which the user can correct."""


def main(descriptor: int, parent: int, memory_bytes: int | None) -> NoReturn:
    """Runs tasks from the connection with that file descriptor, for the process `parent`.

    `memory_bytes` is the resident memory that the task's process and its descendants may hold
    together; None stands for no limit.
    """
    _stdout_to_stderr()
    keeper = _Keeper(parent, memory_bytes)
    pid = os.getpid()
    worker = os.fork()
    if worker:
        keeper.keep(worker)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    os.setpgid(0, 0)  # so that a task which kills its own group does not kill the keeper
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != pid:  # the keeper died before prctl took effect
        os._exit(1)
    if keeper.folder:
        os.environ["TMPDIR"] = tempfile.tempdir = keeper.folder
    _serve(Connection(descriptor))


class _Keeper:
    """The process that ends a task's process, and all that descend from it."""

    def __init__(self, parent: int, memory_bytes: int | None) -> None:
        self._parent, self._memory_bytes = parent, memory_bytes
        self._worker = 0
        self.folder = ""
        """The folder of the task's temporary files, which compilers leave when they are killed."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for tunefa's own process
        signal.signal(signal.SIGTERM, lambda *_: self._end(1))
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        if os.getppid() != parent:  # it died before prctl took effect
            os._exit(1)
        with contextlib.suppress(OSError):  # no folder can be written: compilers say so
            self.folder = tempfile.mkdtemp(prefix="tunefa-worker-")

    def keep(self, worker: int) -> NoReturn:
        """Waits for the end of the process `worker`, or brings it about."""
        self._worker = worker
        signal.signal(signal.SIGALRM, lambda *_: self._look())
        signal.setitimer(signal.ITIMER_REAL, _LOOK_S)
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == worker:  # and not an orphan that was adopted
                self._end(os.waitstatus_to_exitcode(status))

    def _look(self) -> None:
        begun = time.process_time()
        if os.getppid() != self._parent:
            self._end(1)
        if self._memory_bytes is not None and _held_bytes(self._worker) > self._memory_bytes:
            self._end(-TOO_MUCH_MEMORY)
        used = time.process_time() - begun
        signal.setitimer(signal.ITIMER_REAL, max(_LOOK_S, _REST * used))

    def _end(self, code: int) -> NoReturn:
        """Ends all descendants, then this process: with a code, or by a signal if it is negative.

        The children of a killed process become those of this one, until there are none.
        """
        signal.setitimer(signal.ITIMER_REAL, 0)
        if self._worker and not sys.platform.startswith("linux"):  # _children is empty there
            with contextlib.suppress(OSError):
                os.killpg(self._worker, signal.SIGKILL)
        until = time.monotonic() + _END_S
        with contextlib.suppress(ChildProcessError):  # there are none left
            while time.monotonic() < until:
                for child in _children()[os.getpid()]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(0.01)
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            with contextlib.suppress(OSError):  # SIGKILL has no handler
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code % 256)


def _children() -> dict[int, list[int]]:
    """The children of each process, by process id. It is empty where there is no /proc."""
    found: dict[int, list[int]] = defaultdict(list)
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):  # it has ended meanwhile
                # The name, in parentheses, may hold any character. Then come state and parent.
                with open(f"/proc/{entry}/stat", "rb") as file:
                    words = file.read().rpartition(b")")[2].split()
                found[int(words[1])].append(int(entry))
    return found


def _held_bytes(process: int) -> int:
    """The resident memory of a process and its descendants; files that they map are included."""
    children, left, pages = _children(), [process], 0
    while left:
        each = left.pop()
        left += children[each]
        with contextlib.suppress(OSError, IndexError):
            pages += int(Path("/proc", str(each), "statm").read_bytes().split()[1])
    return pages * resource.getpagesize()


def _serve(connection: Connection) -> NoReturn:
    """Runs one task after the other, until tunefa closes the connection."""
    connection.send_bytes(b"")  # ready: a task's time begins with the task
    with contextlib.suppress(EOFError):
        while True:
            connection.send_bytes(_answer(connection.recv_bytes()))
    os._exit(0)


def _answer(question: bytes) -> bytes:
    """Runs a pickled (function, arguments). Returns its pickled result, or a pickled Raised."""
    try:
        task, arguments = pickle.loads(question)
        return pickle.dumps(task(*arguments))
    except BaseException as error:  # code from kernels/ may raise anything, SystemExit included
        return pickle.dumps(
            Raised(
                str(error) if isinstance(error, TunefaError) else said(error),
                traceback.format_exc(),
                isinstance(error, TunefaError),
            )
        )


def said(error: BaseException) -> str:
    """Returns an exception in one line, with the place in kernels/ that it came from, if any."""
    try:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
    except Exception:  # an exception of a kernel may not even have words
        first = ""
    words = f"{type(error).__name__}: {first}" if first else type(error).__name__
    folder = f"{assets.root('kernels')}{os.sep}"
    frames = traceback.extract_tb(error.__traceback__)
    places = [frame for frame in frames if frame.filename.startswith(folder)]
    if places:
        words += f" ({places[-1].filename.removeprefix(folder)}:{places[-1].lineno})"
    return " ".join(words.split())[:300]


def _stdout_to_stderr() -> None:
    """Sends what kernels and compilers print to standard error: tunefa's own output is data."""
    try:
        os.dup2(2, 1)
    except OSError:  # tunefa was started without a standard error
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _prctl(option: int, value: int) -> None:
    """Calls prctl, which only Linux has."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value)
