"""Compiles configs in parallel processes, so that a crash of the compiler costs only one config."""

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
"""Helion lowered its limit from 60 s to 15 s and lost no best config. ptxas may take 10 s."""


@dataclass(frozen=True)
class Pending:
    """A config that is being compiled."""

    config: Config
    future: Future[tuple[Outcome, Resources | None, float, str]]

    def trial(self) -> Trial:
        """Waits for the compiler, and returns a trial: `ok` with resources, or the failure."""
        try:
            outcome, resources, seconds, reason = self.future.result()
        except TimeoutError:
            return Trial(self.config, "timeout", f"compiling took over {COMPILE_LIMIT_S:.0f} s")
        except ProcessExpired as error:
            reason = f"the compiler died with exit code {error.exitcode}"
            return Trial(self.config, "crashed", reason)
        return Trial(self.config, outcome, reason, resources, compile_s=seconds)


class CompilePool:
    """Compiles configs of one case. A context manager, which at its end stops its own workers."""

    def __init__(
        self,
        case: Case,
        workers: int | None = None,
        also: Callable[[Workload, Config], Workload] | None = None,
        processes: Workers | None = None,
    ):
        """Starts `workers` processes, by default one for each CPU, or uses `processes`.

        `also(workload, config)` returns a second workload that the config will run on. If it needs
        another binary, that is compiled as well, so that the bench finds it in the cache.
        `processes` are not stopped at the end, and may be shared.
        """
        self._case, self._also = case, also
        self._shared = processes is not None
        self._processes = processes or Workers(workers or os.cpu_count() or 1)
        self.workers = self._processes.count

    def __enter__(self) -> CompilePool:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends its own workers at once; then nothing can be submitted any more."""
        if not self._shared:
            self._processes.stop()

    def submit(self, config: Config) -> Pending:
        """Starts compiling a config; `Pending.trial` waits for the result."""
        also = None if self._also is None else str(self._also(self._case.workload, config))
        task = (self._case.names, dict(config), also)
        future = self._processes.submit(_compile, task, COMPILE_LIMIT_S)
        return Pending(config, future)


def _compile(
    names: tuple[str, str, str], config: Config, also: str | None = None
) -> tuple[Outcome, Resources | None, float, str]:
    """Runs in a worker. Returns (outcome, resources, seconds, reason)."""
    case = Case.from_names(*names)
    workload, language = case.workload, languages.load(case.kernel.language)
    # In contiguous tensors, the heads of a row are head_dim elements apart.
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
    """Returns the first error in the compiler's output, or `failure` if the output has none.

    The exception often lacks the reason, which is on standard error.
    """
    complaint = next((line for line in log.splitlines() if _CAUSE.search(line)), None)
    return " ".join(complaint.split())[:300] if complaint else failure


@contextlib.contextmanager
def _captured() -> Iterator[io.StringIO]:
    """Collects what compilers print to Python's stdout, and to file descriptor 2 (MLIR does).

    The text is complete after the context.
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
