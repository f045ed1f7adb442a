"""The objective on the device that is there: compilers in a pool, the bench in its own process.

A config that crashes, hangs or writes where it must not takes its process with it; the next one
gets a new process, with a CUDA context that nothing has poisoned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from concurrent.futures import TimeoutError
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Literal

from pebble import ProcessExpired

from tunefa import arch as archs
from tunefa import kernel as kernels
from tunefa.arch import Arch, Device
from tunefa.bench import Bench
from tunefa.evaluate import Predicted, Raced
from tunefa.kernel import Kernel
from tunefa.trial import Config, Outcome, Trial
from tunefa.workers import Workers
from tunefa.workload import Workload

RUN_LIMIT_S = 30.0
"""For one config: checked, screened and, at first, a new process with its CUDA context."""
RACE_LIMIT_S = 120.0

_Task = tuple[str, str, str]
"""Kernel, workload and arch by name: what a process needs to make its bench."""


@dataclass(frozen=True)
class Lost:
    """What a process was lost over."""

    outcome: Outcome
    reason: str


class Measured(Predicted):
    """Compiles in the pool, then checks and times on the current CUDA device, one by one."""

    kind: Literal["measured", "predicted"] = "measured"

    def __init__(
        self, kernel: Kernel, workload: Workload, arch: Arch, device: Device, workers: int | None
    ):
        super().__init__(kernel, workload, arch, device, workers)
        self._task: _Task = (kernel.name, str(workload), arch.name)
        self._process = Workers(1)
        self._best_us = math.inf

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.stop()
        super().__exit__(kind, error, trace)

    def judge(self, trial: Trial) -> Trial:
        """The trial with its prediction, its error and a few samples."""
        trial = super().judge(trial)
        if trial.outcome != "ok":
            return trial
        judged = self._call("judge", (trial, self._best_us), RUN_LIMIT_S)
        if isinstance(judged, Lost):
            return replace(trial, outcome=judged.outcome, reason=judged.reason)
        if judged.outcome == "ok" and judged.median_us is not None:
            self._best_us = min(self._best_us, judged.median_us)
        found: Trial = judged
        return found

    def race(self, trials: Iterable[Trial], default: Config | None) -> Raced:
        """Checks finalists on the real shape, then races those that are right in rounds.

        If the process is lost over it, what was screened before stands, and nothing is certified.
        """
        finalists = list(trials)
        raced = self._call("race", (finalists, default), RACE_LIMIT_S)
        return Raced(finalists) if isinstance(raced, Lost) else raced

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


@functools.lru_cache(maxsize=1)
def _bench(task: _Task) -> Bench:
    kernel, workload, arch = task
    return Bench(kernels.load(kernel), Workload.parse(workload), archs.load(arch))


def run(task: _Task, method: str, arguments: tuple[Any, ...]) -> Any:
    """In the process: calls a method of its bench; Lost where the device or the kernel failed."""
    try:
        return getattr(_bench(task), method)(*arguments)
    except Exception as error:  # code from kernels/ runs in here, and may raise anything
        first = str(error).splitlines() or [""]
        return Lost("crashed", f"{type(error).__name__}: {first[0]}")
