"""The objective on the device of this machine: a pool of compilers, and a bench in its own process.

A config that crashes, hangs or writes to wrong addresses ends its process or makes its CUDA context
unusable; the next config gets a new process.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future, TimeoutError
from dataclasses import dataclass, replace
from typing import Any, Literal

from tunefa.compile.worker_process import said
from tunefa.compile.workers import ProcessLost, Workers
from tunefa.costmodel.roofline import cache_us
from tunefa.errors import TunefaError
from tunefa.measure import loading
from tunefa.measure.bench import Bench, KernelRaceResult
from tunefa.measure.npu import Modelled
from tunefa.measure.objective import Raced
from tunefa.measure.predicted import Predicted
from tunefa.measure.racing import without_race
from tunefa.spec.arch import Arch, NpuArch
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Mode, Outcome, Trial

RUN_LIMIT_S = 30.0
"""For one config to be checked and screened; a new process has to make its CUDA context first."""
RACE_LIMIT_S = 120.0
"""For the finalists' checks and their races."""
RACE_MARGIN_S = 20.0
"""A race ends so long before RACE_LIMIT_S, after twelve rounds at least; another may follow."""
GRACE_S = 3.0
"""The seconds beyond the end of a search that a config on the device may run; most take 0.2 s."""
_AHEAD = 2
"""The configs that the bench's process has at a time: it begins with the second one as soon as the
first has ended, while this process learns that. A config takes 25 to 40 ms on an H100, and with one
at a time the device was idle for up to a tenth of the end of a sweep, with few slices."""

_Task = tuple[tuple[str, str, str], Mode]
"""The names of a case, and the mode: enough for a process to make its bench."""


@dataclass(frozen=True)
class LostProcess:
    """The end of a process that did not return."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class _Running:
    """A compiled trial, and what the bench's process will say of it; None where it says nothing."""

    compiled: Trial
    expected: Trial
    """The trial with its prediction."""
    judged: Future[Any] | None
    limit_s: float
    until: float = math.inf
    """The `time.monotonic` at which its search is over."""


class Measured(Predicted):
    """Compiles in the pool; checks and times configs on the current CUDA device, one by one.

    While the caller learns from a trial, the device works on the next ones that are compiled.
    """

    kind: Literal["measured", "predicted"] = "measured"
    mode: Mode = "eager"
    reserve_s = 7.0
    """The time to check finalists on the workload's own shape and to race them. A race that takes
    longer, as in a new process after a crash, ends at its second look at the standing."""

    def __init__(
        self,
        case: Case,
        workers: int | None = None,
        process: Workers | None = None,
        compilers: Workers | None = None,
    ) -> None:
        """`process`, a single worker, and `compilers` may be shared by several objectives; for each
        that is None the objective has its own."""
        super().__init__(case, workers, compilers)
        self._task: _Task = (case.names, self.mode)
        self._owned = contextlib.ExitStack()
        self._is_shared = process is not None
        self._process = process or self._owned.enter_context(Workers(1))
        loading.warm_up(self._process)  # candidates compile meanwhile
        self._best_us = math.inf
        self._running: deque[_Running] = deque()

    def __exit__(self, *_: object) -> None:
        if self._is_shared:  # others would find the process lost
            self._settle_all()
        self._owned.close()
        super().__exit__()

    def next(self, wait_s: float = math.inf) -> Trial | None:
        """Judges the first compiled trial; None if there is none within `wait_s` seconds."""
        until = time.monotonic() + wait_s
        self._begin_more(wait_s, until)
        trial = self._first_ended() if self._running else None
        if trial is not None:
            self._begin_more(0.0, until)
        return trial

    def judge(self, trial: Trial, limit_s: float = RUN_LIMIT_S) -> Trial:
        """Returns a compiled trial with its prediction, its error and a few samples."""
        return self._ended(self._on_device(trial, math.inf, limit_s))

    def retime(self, trial: Trial, left_s: float) -> Trial | None:
        """Returns a right trial with a few samples more; None if its process was lost. The search
        has `left_s` seconds. Nothing may run on the device ahead of `next`."""
        found = self._call("retime", (trial,), min(RUN_LIMIT_S, left_s + GRACE_S))
        return None if isinstance(found, LostProcess) else found

    def is_ready(self, wait_s: float) -> bool:
        """Whether a config in progress is compiled; waits up to `wait_s` seconds for one."""
        return bool(self._running) or super().is_ready(wait_s)

    def settle(self) -> Trial | None:
        """Waits for what the device runs ahead of `next`; returns its first trial, if any."""
        while self._running:
            if (trial := self._first_ended()) is not None:
                return trial
        return None

    def _settle_all(self) -> None:
        while self.settle() is not None:
            pass

    def _begin_more(self, wait_s: float, until: float) -> None:
        """Gives the bench's process up to _AHEAD compiled trials; for the first one it waits up to
        `wait_s` seconds."""
        while not self._running or (len(self._running) < _AHEAD and time.monotonic() < until):
            compiled = self._compiled(0.0 if self._running else wait_s)
            if compiled is None:
                return
            self._running.append(self._on_device(compiled, until, RUN_LIMIT_S))

    def _first_ended(self) -> Trial | None:
        """Waits for the first trial on the device; None if it had no time to end. It stays there
        until it is read, so that Ctrl-C loses none."""
        trial = self._unless_cut(self._running[0])
        self._running.popleft()
        return trial

    def _on_device(self, compiled: Trial, until: float, limit_s: float) -> _Running:
        """Gives the bench's process a compiled trial of a search that is over at `until`."""
        expected, judged = super().judge(compiled), None
        limit_s = min(limit_s, max(0.0, until - time.monotonic()) + GRACE_S)
        if expected.outcome == "ok":
            judged = self._submitted("judge", (expected, self._best_us), limit_s)
        return _Running(compiled, expected, judged, limit_s, until)

    def _unless_cut(self, running: _Running) -> Trial | None:
        """Waits for the device, and returns the trial; None if it had no time to end."""
        try:
            trial = self._ended(running)
        except CancelledError:  # Ctrl-C came while its process was renewed
            return None
        cut = running.limit_s < RUN_LIMIT_S and trial.outcome == "timeout"
        return None if cut and running.compiled.outcome != "timeout" else trial

    def _ended(self, running: _Running) -> Trial:
        """Waits for the device, and returns the trial."""
        trial = running.expected
        if running.judged is None:
            return trial
        judged = self._result(running.judged, running.limit_s)
        if isinstance(judged, LostProcess):
            return replace(trial, outcome=judged.outcome, reason=judged.reason)
        if judged.outcome == "ok" and judged.median_us is not None:
            self._best_us = min(self._best_us, judged.median_us)
        found: Trial = judged
        return found

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """Checks finalists on the workload's own shape, then races those that pass.

        If the process is lost, the best by the screenings wins, and is not certified.
        """
        self._settle_all()
        self._abandon()
        finalists = list(trials)
        raced: Raced | LostProcess = self._raced("race", (finalists, default), until)
        if isinstance(raced, LostProcess):
            return without_race([t for t in finalists if t.resources is not None], raced.reason)
        return raced

    def race_kernels(
        self, own: Trial, rivals: list[tuple[str, Trial]], until: float = math.inf
    ) -> KernelRaceResult | LostProcess:
        """Races this kernel's winner against those of others; `rivals` are (kernel, trial)."""
        found: KernelRaceResult | LostProcess = self._raced("race_kernels", (own, rivals), until)
        return found

    def _raced(self, method: str, arguments: tuple[Any, ...], until: float) -> Any:
        until = min(until, time.monotonic() + RACE_LIMIT_S - RACE_MARGIN_S)
        arguments += (until, cache_us(self.case.workload, self.case.target))
        return self._call(method, arguments, RACE_LIMIT_S)

    def _call(self, method: str, arguments: tuple[Any, ...], limit_s: float) -> Any:
        """Returns what a method of the bench returns, or how its process was lost."""
        return self._result(self._submitted(method, arguments, limit_s), limit_s)

    def _submitted(self, method: str, arguments: tuple[Any, ...], limit_s: float) -> Future[Any]:
        task = self._task, method, arguments
        return self._process.submit(run_in_process, task, limit_s)

    def _result(self, asked: Future[Any], limit_s: float) -> Any:
        must_renew = len(self._running) > 1  # else the next task has a new process by itself
        try:
            result = asked.result()
        except TimeoutError:
            result = LostProcess("timeout", f"running took over {limit_s:.0f} s")
        except ProcessLost as error:
            result = LostProcess("crashed", f"the process {error}")
        else:
            must_renew = isinstance(result, LostProcess)  # its CUDA context may be unusable now
        if must_renew:
            self._renew()
        return result

    def _renew(self) -> None:
        """Takes a new process. Trials behind the first one are given to it, while there is time:
        the lost one may have begun with them."""
        self._process.renew()
        loading.warm_up(self._process)
        behind = list(self._running)[1:]
        for _ in behind:
            self._running.pop()
        for each in behind:
            if time.monotonic() < each.until:
                self._running.append(self._on_device(each.compiled, each.until, RUN_LIMIT_S))


class MeasuredInGraph(Measured):
    """Measures in mode graph: each launch is captured into a CUDA graph and replayed."""

    mode: Mode = "graph"


class MeasuredInStep(Measured):
    """Measures in mode step: each launch is captured between two other kernels."""

    mode: Mode = "step"


class MeasuredOnNpu(Measured, Modelled):
    """Measures on a Huawei NPU; its compiler says what fits. This was never run on an NPU."""


def gpu_objective(mode: Mode) -> type[Measured]:
    """The objective that measures on a GPU in that mode."""
    return next(k for k in (Measured, MeasuredInGraph, MeasuredInStep) if k.mode == mode)


def objective(arch: Arch, mode: Mode) -> type[Measured]:
    """The objective that measures on a device of the arch, in that mode.

    Raises TunefaError for captured launches on an NPU.
    """
    if not isinstance(arch, NpuArch):
        return gpu_objective(mode)
    if mode != "eager":
        raise TunefaError(f"{arch.name} is timed in eager mode only: leave out --mode {mode}")
    return MeasuredOnNpu


_benches: dict[tuple[str, str, Mode], Bench] = {}
"""The bench of the current workload, by (workload, arch, mode), in the process that runs it: its
tensors, and what the gate checks with, serve all kernels."""


def _bench(task: _Task) -> Bench:
    (kernel, workload, arch), mode = task
    key = workload, arch, mode
    if key not in _benches:
        _benches.clear()  # first: the device may not hold the tensors of two workloads
        _benches[key] = Bench(Case.from_names(kernel, workload, arch), mode)
    return _benches[key].with_kernel(kernel)


def run_in_process(task: _Task, method: str, arguments: tuple[Any, ...]) -> Any:
    """Calls a method of the task's bench; returns LostProcess if the device or kernel failed."""
    try:
        return getattr(_bench(task), method)(*arguments)
    except BaseException as error:  # code from kernels/ may raise anything, SystemExit included
        return LostProcess("crashed", said(error))
