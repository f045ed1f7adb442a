"""Compiles configs in parallel processes, so that a crash of the compiler costs only one config."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import CancelledError, Future, TimeoutError
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, TypeVar

from tunefa.compile import in_progress, languages, stored
from tunefa.compile.contract import Compiled, CompileError
from tunefa.compile.place import Place
from tunefa.compile.worker_process import said
from tunefa.compile.workers import Later, ProcessLost, TaskRaised, Workers
from tunefa.errors import TunefaError
from tunefa.spec.kernel import KernelImportError
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Outcome, Resources, Trial, identity
from tunefa.spec.workload import Workload

COMPILE_LIMIT_S = 60.0
"""Helion lowered its limit from 60 s to 15 s and lost no best config. ptxas may take 10 s."""
FINISH_S = 5.0
"""Most configs of attention take 0.3 to 3 s on a machine whose cores all compile."""
WAITING = "waiting"
"""The name under which `Workers.ran_s` of compilers has the seconds in which the GPU waited."""
MEMORY_BYTES = 2 * 2**30
"""The resident memory that a compiler and the processes it starts may hold together. The kernels
here take up to 0.3 GiB, with any of the three compilers for NVIDIA chips."""


_Done = tuple[Outcome, Resources | None, float, str]
"""The outcome, resources, seconds and reason of a config that was compiled."""
_Made = TypeVar("_Made")
_Also = Callable[[Case, Config], Workload] | None
"""See `CompilePool`."""


class Rank(IntEnum):
    """The rank of a config: compilers begin with those of a lower one before others."""

    COMPILED = -1
    """It has its binary, as far as its search knows, so a compiler has done with it at once."""
    NOW = 0
    DEFAULT = 1
    """It can wait, but not for others that can: a search begins when it has the defaults."""
    LATER = 2
    """It can wait."""


@dataclass(frozen=True)
class Pending:
    """A config that is being compiled."""

    config: Config
    future: Future[_Done]

    @property
    def was_stopped(self) -> bool:
        """Whether its compiler was stopped, so that there will be no trial."""
        if not self.future.done():
            return False
        return self.future.cancelled() or isinstance(self.future.exception(), CancelledError)

    def trial(self) -> Trial:
        """Waits for the compiler, and returns a trial: `ok` with resources, or the failure.

        Raises TunefaError where no config can be compiled, as there is no compiler.
        """
        try:
            outcome, resources, seconds, reason = self.future.result()
        except TimeoutError:
            return Trial(self.config, "timeout", f"compiling took over {COMPILE_LIMIT_S:.0f} s")
        except ProcessLost as error:
            return Trial(self.config, "crashed", f"the compiler {error}")
        except TaskRaised as error:
            return Trial(self.config, "compile_failed", str(error))
        return Trial(self.config, outcome, reason, resources, compile_s=seconds)


def compilers(count: int, lasting: bool = True, place: Place | None = None) -> Workers:
    """Returns processes for compilers, which several pools may share; `lasting` ones several
    searches."""
    return Workers(count, MEMORY_BYTES, lasting, place)


def warm_up(processes: Workers, language: str) -> None:
    """Starts all of these processes, and lets them import the compilers of a language, which takes
    seconds."""
    for _ in range(processes.count):
        processes.submit(_import, (language,), COMPILE_LIMIT_S)


def _import(language: str) -> None:
    loaded = languages.load(language)
    with contextlib.suppress(Exception):  # what is missing is said where it is needed
        getattr(loaded, "warm_up", lambda: None)()


class CompilePool:
    """Compiles configs of one case. A context manager, which at its end stops its own workers."""

    def __init__(
        self,
        case: Case,
        workers: int | None = None,
        also: _Also = None,
        processes: Workers | None = None,
    ):
        """Starts `workers` processes, by default one for each CPU, or uses `processes`.

        `also(case, config)`, a function of a module, returns a second workload that the config will
        run on; a compiler's process asks it. If it needs another binary, that is compiled as well,
        so that the bench finds it in the cache.
        `processes` are not stopped at the end, and may be shared.
        """
        self._case, self._also = case, also
        self._shared = processes is not None
        self._processes = processes or compilers(workers or os.cpu_count() or 1)
        self.workers = self._processes.count

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends its own workers at once; then nothing can be submitted any more."""
        if not self._shared:
            self._processes.stop()

    def abandon(self, pending: Iterable[Pending]) -> None:
        """Leaves the cores idle: what was submitted and is not compiled yet is not needed.

        Its own workers end at once, as do those of one search, where it takes less time to start
        new ones. Workers of several searches finish the configs that they have begun, for FINISH_S
        at most; nobody waits for workers that have cores of their own.
        """
        if not self._shared:
            self.stop()
        begun = [each.future for each in pending if not each.future.cancel()]
        if self._shared and not self._processes.lasting and not all(f.done() for f in begun):
            self._processes.renew()
        if not self._processes.apart:
            futures.wait(begun, FINISH_S)

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> Pending:
        """Starts compiling a config; `Pending.trial` waits for the result. A kernel's default that
        can wait has the rank `DEFAULT`."""
        begun = self._processes.begun.pop(self._key(config), None)
        if begun is not None and not begun.cancelled():
            found = Pending(config, begun)
            if rank <= Rank.NOW:
                self.hurry(found)
            return found
        task = (self._case.names, dict(config), self._also)
        if rank == Rank.LATER and self._is_default(config):
            rank = Rank.DEFAULT
        future = self._processes.submit(_compile_once, task, COMPILE_LIMIT_S, rank)
        return Pending(config, future)

    def _is_default(self, config: Config) -> bool:
        with contextlib.suppress(TunefaError):  # the kernel has no default
            return config == self._case.default()
        return False

    def hurry(self, pending: Pending) -> None:
        """Lets a config wait no longer for others that can wait, too."""
        if not pending.future.done():
            self._processes.hurry(pending.future)

    def begin(self, config: Config) -> None:
        """Starts compiling a config, after others. The next pool of the same case and processes to
        which the config is submitted has the result."""
        future = self.submit(config, Rank.LATER).future
        self._processes.begun[self._key(config)] = future

    def _key(self, config: Config) -> tuple[Any, ...]:
        return self._case.names, identity(config), self._also

    def wait_for_one(self, pending: Iterable[Pending], wait_s: float) -> bool:
        """Waits up to `wait_s` seconds until one is compiled, and returns whether one is. The time
        is that of a task `waiting` of its processes."""
        begun = time.monotonic()
        timeout_s = None if math.isinf(wait_s) else wait_s
        waiting = [each.future for each in pending]
        done = futures.wait(waiting, timeout_s, futures.FIRST_COMPLETED).done
        self._processes.ran_s[WAITING] += time.monotonic() - begun
        return bool(done)


def forget(processes: Workers, cases: Iterable[Case]) -> None:
    """Drops the configs of these cases that were begun, and that no pool was asked for."""
    names = {case.names for case in cases}
    for key in list(processes.begun):
        if key[0] in names:
            processes.begun.pop(key).cancel()


def _compile_once(names: tuple[str, str, str], config: Config, also: _Also = None) -> _Done | Later:
    """Runs in a worker. Does what `_compile` does; Later while another process compiles the same
    binary, which is in the cache then. That process may be stopped, so it is not waited for
    without a limit."""
    case = Case.from_names(*names)
    with _captured():
        name = _attempt(lambda: stored.digest(case, config, case.workload.is_aligned))
    if isinstance(name, CompileError):  # compiling says what is wrong
        return _compile(names, config, also)
    with in_progress.claimed(name) as is_free:
        return _compile(names, config, also) if is_free else Later(_compile)


def _compile(names: tuple[str, str, str], config: Config, also: _Also = None) -> _Done:
    """Runs in a worker."""
    case = Case.from_names(*names)
    language, aligned = languages.load(case.kernel.language), case.workload.is_aligned

    def compile_all() -> Compiled:
        compiled: Compiled = language.compile(case, config, aligned)
        if also is not None:
            other = replace(case, workload=also(case, config))
            keys = {language.binary_key(each, config, aligned) for each in (case, other)}
            if len(keys) > 1:
                language.compile(other, config, aligned)
        return compiled

    with _captured() as log:
        made = _attempt(compile_all)
    if isinstance(made, CompileError):
        return made.outcome, made.resources, 0.0, _cause(str(made), log.getvalue())
    return "ok", made.resources, made.seconds, ""


def _attempt(work: Callable[[], _Made]) -> _Made | CompileError:
    """Returns what compilers and code from kernels/ return, or why they fail. Raises TunefaError
    where there is no compiler, which is no property of a config."""
    try:
        return work()
    except CompileError as error:
        return error
    except KernelImportError as error:
        return CompileError(str(error))
    except TunefaError:
        raise
    except BaseException as error:  # code from kernels/ may raise anything, SystemExit included
        return CompileError(said(error))


_CAUSE = re.compile(r"error: (?!Failures have been detected)|fatal\s|Assertion|LLVM ERROR")


def _cause(failure: str, log: str) -> str:
    """Returns the first error in the compiler's output, or `failure` if the output has none.

    The exception often lacks the reason, which is on standard error.
    """
    complaint = next((line for line in log.splitlines() if _CAUSE.search(line)), None)
    return " ".join(complaint.split())[:300] if complaint else failure


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    """Collects what compilers and kernels print: to Python's stdout, and to the file descriptors 1
    and 2 (MLIR does).

    The text is complete after the context.
    """
    text = io.StringIO()
    sys.stderr.flush()
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    with tempfile.TemporaryFile() as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        try:
            with contextlib.redirect_stdout(text):
                yield text
        finally:
            sys.stderr.flush()
            for descriptor, before in enumerate(kept, start=1):
                os.dup2(before, descriptor)
                os.close(before)
            file.seek(0)
            text.write(file.read().decode(errors="replace"))
