"""Compiles candidates in processes of their own: a compiler that crashes costs one config."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, TimeoutError
from dataclasses import dataclass, replace

from pebble import ProcessExpired

from tunefa.compile import languages
from tunefa.compile.contract import CompileError
from tunefa.compile.workers import Workers
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Outcome, Resources, Trial
from tunefa.spec.workload import Workload

COMPILE_LIMIT_S = 60.0
"""Helion lowered its limit from 60 s to 15 s without losing a winner; ptxas alone may take 10 s."""


@dataclass(frozen=True)
class Pending:
    """A config on its way through the compiler."""

    config: Config
    future: Future[tuple[Outcome, Resources | None, float, str]]

    def trial(self) -> Trial:
        """Waits for it: `ok` with resources, or why it failed."""
        try:
            outcome, resources, seconds, reason = self.future.result()
        except TimeoutError:
            return Trial(self.config, "timeout", f"compiling took over {COMPILE_LIMIT_S:.0f} s")
        except ProcessExpired as error:
            reason = f"the compiler died with exit code {error.exitcode}"
            return Trial(self.config, "crashed", reason)
        return Trial(self.config, outcome, reason, resources, compile_s=seconds)


class CompilePool:
    """Compiles configs of one case. A context manager; leaving it stops its own workers at once."""

    def __init__(
        self,
        case: Case,
        workers: int | None = None,
        also: Callable[[Workload, Config], Workload] | None = None,
        processes: Workers | None = None,
    ):
        """`also`: says of a config for which other workload it will run, and is compiled where that
        is another binary; the bench would do it, one config after the other. `processes`: in place
        of `workers` of its own; they outlive this and may serve others."""
        self._case, self._also = case, also
        self._shared = processes is not None
        self._processes = processes or Workers(workers or os.cpu_count() or 1)
        self.workers = self._processes.count

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends all workers of its own at once; nothing can be submitted to these any more."""
        if not self._shared:
            self._processes.stop()

    def submit(self, config: Config) -> Pending:
        """Starts compiling; `Pending.trial` waits for the result."""
        also = None if self._also is None else str(self._also(self._case.workload, config))
        task = (self._case.names, dict(config), also)
        future = self._processes.submit(_compile, task, COMPILE_LIMIT_S)
        return Pending(config, future)


def _compile(
    names: tuple[str, str, str], config: Config, also: str | None = None
) -> tuple[Outcome, Resources | None, float, str]:
    """In a worker: ("ok", resources, seconds, "") or (what happened, what is known, 0, why)."""
    case = Case.from_names(*names)
    workload, language = case.workload, languages.load(case.kernel.language)
    # As contiguous tensors have it: the heads of each row lie head_dim elements apart.
    aligned = workload.head_dim % 16 == 0 and workload.head_dim_v % 16 == 0
    with _captured() as log:
        try:
            compiled = language.compile(case, config, aligned)
            if also is not None:
                other = replace(case, workload=Workload.parse(also))
                keys = {language.binary_key(each, config, aligned) for each in (case, other)}
                if len(keys) > 1:
                    language.compile(other, config, aligned)
            return "ok", compiled.resources, compiled.seconds, ""
        except CompileError as error:
            failure = error
    return failure.outcome, failure.resources, 0.0, _cause(str(failure), log.getvalue())


_CAUSE = re.compile(r"error: (?!Failures have been detected)|fatal\s|Assertion|LLVM ERROR")


def _cause(failure: str, log: str) -> str:
    """The compiler's own first complaint, which its exception often leaves to standard error."""
    complaint = next((line for line in log.splitlines() if _CAUSE.search(line)), None)
    return " ".join(complaint.split())[:300] if complaint else failure


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    """Collects what compilers print: Python's stdout, and descriptor 2, where MLIR writes.

    The text is there when the context is left.
    """
    text = io.StringIO()
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            with contextlib.redirect_stdout(text):
                yield text
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            text.write(file.read().decode(errors="replace"))
