"""The objective on the device that is there: compilers in a pool, the bench in its own process.

A config that crashes, hangs or writes where it must not takes its process with it; the next one
gets a new process, with a CUDA context that nothing has poisoned.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable
from concurrent.futures import TimeoutError
from dataclasses import dataclass, replace
from typing import Any, Literal

from pebble import ProcessExpired

from tunefa.compile.workers import Workers
from tunefa.errors import TunefaError
from tunefa.measure.bench import Bench, Final
from tunefa.measure.npu import Modelled
from tunefa.measure.objective import Raced
from tunefa.measure.predicted import Predicted
from tunefa.spec.arch import Arch, NpuArch
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Mode, Outcome, Trial, time_us

RUN_LIMIT_S = 30.0
"""For one config: checked, screened and, at first, a new process with its CUDA context."""
RACE_LIMIT_S = 120.0
"""For the finalists' checks and their races. A race ends early before it, with its certificate."""
RACE_MARGIN_S = 20.0
"""How long before that limit a race ends: it has twelve rounds then, and may be run once more."""
GRACE_S = 3.0
"""How far beyond the end of a search one that is on the device may run; most take 0.2 s."""

_Task = tuple[tuple[str, str, str], Mode]
"""The names of a case, and the mode: what a process needs to make its bench."""


@dataclass(frozen=True)
class Lost:
    """What a process was lost over."""

    outcome: Outcome
    reason: str


class Measured(Predicted):
    """Compiles in the pool, then checks and times on the current CUDA device, one by one."""

    kind: Literal["measured", "predicted"] = "measured"
    mode: Mode = "eager"
    reserve_s = 10.0
    """Finalists checked on the real shape and raced, in a new process if one was just lost. A race
    that has not ended then ends at its second look: all of `tunefa verify` takes 13 s a record."""

    def __init__(
        self, case: Case, workers: int | None = None, process: Workers | None = None
    ) -> None:
        """`process`: a single worker, which outlives this and may serve others; None: its own."""
        super().__init__(case, workers)
        self._task: _Task = (case.names, self.mode)
        self._owned = contextlib.ExitStack()
        self._process = process or self._owned.enter_context(Workers(1))
        self._process.submit(_warm_up, (), RUN_LIMIT_S)  # candidates compile meanwhile
        self._best_us = math.inf

    def __exit__(self, *_: object) -> None:
        self._owned.close()
        super().__exit__()

    def next(self, wait_s: float = math.inf) -> Trial | None:
        """The first that is compiled, judged; None if there is none within `wait_s` seconds."""
        until = time.monotonic() + wait_s
        compiled = self._compiled(wait_s)
        if compiled is None:
            return None
        limit_s = min(RUN_LIMIT_S, max(0.0, until - time.monotonic()) + GRACE_S)
        trial = self.judge(compiled, limit_s)
        cut_short = limit_s < RUN_LIMIT_S and trial.outcome == "timeout" != compiled.outcome
        return None if cut_short else trial

    def judge(self, trial: Trial, limit_s: float = RUN_LIMIT_S) -> Trial:
        """The trial with its prediction, its error and a few samples."""
        trial = super().judge(trial)
        if trial.outcome != "ok":
            return trial
        judged = self._call("judge", (trial, self._best_us), limit_s)
        if isinstance(judged, Lost):
            return replace(trial, outcome=judged.outcome, reason=judged.reason)
        if judged.outcome == "ok" and judged.median_us is not None:
            self._best_us = min(self._best_us, judged.median_us)
        found: Trial = judged
        return found

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """Checks finalists on the real shape, then races those that are right in rounds.

        If the process is lost over it, what was screened before stands, and nothing is certified.
        """
        self._abandon()
        finalists = list(trials)
        until = min(until, time.monotonic() + RACE_LIMIT_S - RACE_MARGIN_S)
        raced: Raced | Lost = self._call("race", (finalists, default, until), RACE_LIMIT_S)
        if isinstance(raced, Lost):
            seen = [trial for trial in finalists if trial.resources is not None]
            return unraced(seen, raced.reason)
        return raced

    def final(
        self, own: Trial, rivals: list[tuple[str, Trial]], until: float = math.inf
    ) -> Final | Lost:
        """Races this kernel's winner against those of other kernels, by their names."""
        until = min(until, time.monotonic() + RACE_LIMIT_S - RACE_MARGIN_S)
        found: Final | Lost = self._call("final", (own, rivals, until), RACE_LIMIT_S)
        return found

    def _call(self, method: str, arguments: tuple[Any, ...], limit_s: float) -> Any:
        """What a method of the process's bench returns, or how the process was lost."""
        try:
            result = self._process.submit(run, (self._task, method, arguments), limit_s).result()
        except TimeoutError:
            return Lost("timeout", f"running took over {limit_s:.0f} s")
        except ProcessExpired as error:
            return Lost("crashed", f"the process died with exit code {error.exitcode}")
        if isinstance(result, Lost):  # its CUDA context may be unusable from now on
            self._process.renew()
        return result


class Replaying(Measured):
    """The same, each launch captured into a CUDA graph that is replayed."""

    mode: Mode = "graph"


class OnNpu(Measured, Modelled):
    """The same on an NPU of Huawei, whose compiler says what fits. Nobody ran it on one."""


def unraced(finalists: list[Trial], reason: str, checked: bool = True) -> Raced:
    """What is left when a race is lost: the best that was found right, not certified.

    `checked`: only what a check has found right counts.
    """
    right = [t for t in finalists if t.outcome == "ok" and not (checked and t.error is None)]
    best = min(right, key=time_us, default=None)
    return Raced(finalists, best, {"refused": f"the race was lost: {reason}"} if best else None)


def _warm_up() -> None:
    """In the process: sets up PyTorch and the device, which takes seconds."""
    with contextlib.suppress(Exception):  # without a device the first config says what is wrong
        import torch

        torch.cuda.synchronize()


def timed(mode: Mode) -> type[Measured]:
    """The objective that measures in that mode."""
    return Replaying if mode == "graph" else Measured


def on(arch: Arch, mode: Mode) -> type[Measured]:
    """The objective for such a device. Raises TunefaError for an NPU's graphs."""
    if not isinstance(arch, NpuArch):
        return timed(mode)
    if mode == "graph":
        raise TunefaError(f"{arch.name} is timed eagerly only: leave out --mode graph")
    return OnNpu


_benches: dict[_Task, Bench] = {}
"""In the process: the one that it is at."""


def _bench(task: _Task) -> Bench:
    if task not in _benches:
        _benches.clear()  # first: the device may not hold the tensors of two
        names, mode = task
        _benches[task] = Bench(Case.from_names(*names), mode)
    return _benches[task]


def run(task: _Task, method: str, arguments: tuple[Any, ...]) -> Any:
    """In the process: calls a method of its bench; Lost where the device or the kernel failed."""
    try:
        return getattr(_bench(task), method)(*arguments)
    except Exception as error:  # code from kernels/ runs in here, and may raise anything
        first = str(error).splitlines() or [""]
        return Lost("crashed", f"{type(error).__name__}: {first[0]}")
