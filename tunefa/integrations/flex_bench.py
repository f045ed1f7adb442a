"""The objective of a search of FlexAttention's options: it compiles in other processes, and checks
and times on the call's own tensors, in this one.

The tensors and functions are the user's, so nothing is copied to another process. A config that
makes the device unusable therefore ends the search, and the program.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from concurrent import futures
from concurrent.futures import Future, TimeoutError
from dataclasses import dataclass, replace

from tunefa.compile.contract import CompileError
from tunefa.compile.pool import Rank
from tunefa.compile.workers import ProcessLost, TaskRaised, Workers
from tunefa.integrations.flex_calls import FlexCall
from tunefa.integrations.flex_check import Truth
from tunefa.integrations.flex_kernels import options
from tunefa.integrations.flex_traced import Run, TracedCall, caches, compile_here, run_of
from tunefa.measure.objective import Raced
from tunefa.measure.racing import decided, run_races, samples_of, screened
from tunefa.measure.timing import AnyStopwatch
from tunefa.spec.trial import Config, Outcome, Trial, identity, time_us

COMPILE_LIMIT_S = 60.0
"""The time limit of a compiler. On the first config it also imports PyTorch."""


@dataclass(frozen=True)
class _Pending:
    """A config that is compiled in another process, which says why it does not compile."""

    config: Config
    future: Future[str | None]


class FlexMeasured:
    """Measures configs of one call of FlexAttention on the current CUDA device."""

    reserve_s = 0.0
    """Races come when all ops are searched, after the budget."""

    def __init__(
        self, call: FlexCall, truth: Truth, compilers: Workers, stopwatch: AnyStopwatch
    ) -> None:
        """`call` has tensors; `compilers` may be shared."""
        self._call, self._truth, self._stopwatch = call, truth, stopwatch
        self._traced, self._compilers = TracedCall.of(call), compilers
        self._pending: deque[_Pending] = deque()
        self._runs: dict[tuple[object, ...], Run] = {}
        self._best_us = math.inf
        self.width = compilers.count + 1

    def __enter__(self) -> FlexMeasured:
        return self

    def __exit__(self, *_: object) -> None:
        self.abandon()

    def prepare(self, config: Config, compilers: Workers) -> None:
        """Does nothing: a config is compiled when it is submitted."""

    def is_prepared(self, config: Config) -> bool:
        """Returns True: nothing is compiled before."""
        return True

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        """Starts to compile a config in another process."""
        task = self._traced, options(config), caches()
        future = self._compilers.submit(compile_here, task, COMPILE_LIMIT_S, rank)
        self._pending.append(_Pending(config, future))

    def next(self, wait_s: float = math.inf) -> Trial | None:
        """Checks and times the first config that is compiled; None after `wait_s` seconds."""
        self.is_ready(wait_s)
        ready = next((each for each in self._pending if each.future.done()), None)
        if ready is None:
            return None
        self._pending.remove(ready)
        failed = _failure(ready)
        return self.judge(ready.config) if failed is None else failed

    def is_ready(self, wait_s: float) -> bool:
        """Returns whether a config is compiled; waits up to `wait_s` seconds for one."""
        timeout_s = None if math.isinf(wait_s) else wait_s
        waiting = [pending.future for pending in self._pending]
        return bool(futures.wait(waiting, timeout_s, futures.FIRST_COMPLETED).done)

    def settle(self) -> Trial | None:
        """Returns None: nothing runs ahead."""
        return None

    def judge(self, config: Config) -> Trial:
        """Returns a config's trial. It is compiled here, which is quick where a process did so."""
        began = time.perf_counter()
        try:
            run = run_of(self._call, options(config), self._traced)
            judged = self._truth.judge(run)
        except CompileError as error:
            return Trial(config, "compile_failed", str(error))
        except RuntimeError as error:  # the launch failed
            return Trial(config, "crashed", f"the launch failed: {error}"[:300])
        took_s = time.perf_counter() - began
        trial = Trial(config, "ok", error=judged.error, compile_s=took_s)
        if judged.reason:
            outcome: Outcome = "wrong" if judged.is_steady else "unstable"
            return replace(trial, outcome=outcome, reason=judged.reason)
        prepared = self._stopwatch.prepared(run)
        samples_us = screened(self._stopwatch, prepared, self._best_us)
        trial = replace(trial, samples_us=samples_us)
        self._best_us = min(self._best_us, time_us(trial))
        self._runs[identity(config)] = prepared
        return trial

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """Races finalists, which were all checked on the call's own tensors.

        The compilers must have ended: other processes on the device would disturb it.
        """
        self.abandon()
        finalists = list(trials)
        right = [each for each in finalists if identity(each.config) in self._runs]
        others = [each for each in finalists if identity(each.config) not in self._runs]
        if not right:
            return Raced(others)
        launches = [self._runs[identity(each.config)] for each in [*right, right[0]]]
        pinned = frozenset(i for i, each in enumerate(right) if each.config == default)
        run, watch, refused = run_races(self._stopwatch, launches, pinned, until)
        raced = [replace(t, samples_us=samples_of(run, i)) for i, t in enumerate(right)]
        found = decided(raced, run, default, refused)
        certificate = {**(found.certificate or {}), "device": watch.summary()}
        return replace(found, trials=[*found.trials, *others], certificate=certificate)

    def abandon(self) -> None:
        """Drops the configs that are not compiled; compilers that have begun go on."""
        for pending in self._pending:
            pending.future.cancel()
        self._pending.clear()


def _failure(compiled: _Pending) -> Trial | None:
    """The trial of a config that does not compile; None if it does."""
    try:
        reason = compiled.future.result()
    except TimeoutError:
        reason = f"compiling took over {COMPILE_LIMIT_S:.0f} s"
        return Trial(compiled.config, "timeout", reason)
    except (ProcessLost, TaskRaised) as error:
        return Trial(compiled.config, "crashed", f"the compiler's process {error}")
    return None if reason is None else Trial(compiled.config, "compile_failed", reason)
