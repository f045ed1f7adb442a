"""Objectives say what becomes of a config: predicted without a device, measured on the one there.

Both compile in a pool and hand back trials as they finish; the search loop does not know which one
it drives.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Protocol

from tunefa import check, languages, model, timing
from tunefa.arch import Arch, Device
from tunefa.compile_pool import CompilePool, Pending
from tunefa.errors import TunefaError
from tunefa.kernel import Kernel
from tunefa.languages import CompileError
from tunefa.trial import Config, Resources, Trial
from tunefa.workload import Workload

SCREEN_SAMPLES = 5
RACE_ROUNDS = 15


class Objective(Protocol):
    """Evaluates configs of one kernel for one workload. A context manager."""

    kind: Literal["measured", "predicted"]
    width: int
    """Configs to keep under way."""

    def __enter__(self) -> Objective: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def submit(self, config: Config) -> None:
        """Starts on a config."""

    def next(self) -> Trial:
        """Waits for the next trial; there must be one under way."""

    def race(self, trials: Iterable[Trial]) -> list[Trial]:
        """Finalists again, more carefully, best first; ones found wrong come back as such."""


class Predicted:
    """Compiles for the arch, takes resources from the compiler and the time from the model."""

    kind: Literal["measured", "predicted"] = "predicted"

    def __init__(
        self, kernel: Kernel, workload: Workload, arch: Arch, device: Device, workers: int | None
    ):
        self.kernel, self.workload, self.arch, self.device = kernel, workload, arch, device
        self._language = languages.load(kernel.language)
        if self.kind == "predicted" and (reason := self._language.why_no_interpreter()):
            raise TunefaError(f"the winner could not be checked: {reason}")
        self._pool = CompilePool(kernel, workload, arch, workers)
        self._pending: deque[Pending] = deque()
        self.width = 2 * self._pool.workers

    def __enter__(self) -> Predicted:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.__exit__(kind, error, trace)

    def submit(self, config: Config) -> None:
        """Starts compiling."""
        self._pending.append(self._pool.submit(config))

    def next(self) -> Trial:
        """The first that is ready, else waits for the oldest."""
        ready = next((p for p in self._pending if p.future.done()), self._pending[0])
        self._pending.remove(ready)
        return self.judge(ready.trial())

    def judge(self, trial: Trial) -> Trial:
        """A compiled trial with its time; refused where its block fits no SM."""
        if trial.outcome != "ok" or trial.resources is None:
            return trial
        prediction = model.predict(
            self.workload, self.arch, self.device, trial.config, trial.resources
        )
        if math.isinf(prediction.time_us):
            return replace(trial, outcome="refused", reason=_too_large(trial.resources, self.arch))
        return replace(trial, predicted_us=prediction.time_us)

    def race(self, trials: Iterable[Trial]) -> list[Trial]:
        """Checks the best by running it in the interpreter; a wrong one gives way to the next."""
        ranked = sorted(trials, key=lambda trial: trial.median_us or math.inf)
        for place, trial in enumerate(ranked):
            try:
                verdict = check.in_interpreter(self.kernel, self.workload, trial.config)
            except RuntimeError as error:
                ranked[place] = replace(trial, outcome="crashed", reason=str(error))
                continue
            checked = replace(trial, error=verdict.error)
            if verdict.passed:
                return [checked, *ranked[place + 1 :], *ranked[:place]]
            ranked[place] = replace(checked, outcome="wrong", reason=verdict.reason)
        return ranked


class Measured(Predicted):
    """Compiles in the pool, then checks and times on the current CUDA device, one by one."""

    kind: Literal["measured", "predicted"] = "measured"

    def __init__(
        self, kernel: Kernel, workload: Workload, arch: Arch, device: Device, workers: int | None
    ):
        super().__init__(kernel, workload, arch, device, workers)
        self._scale = workload.head_dim**-0.5
        self._stopwatch = timing.Stopwatch()
        self._tensors = check.tensors(workload, "cuda")

    def judge(self, trial: Trial) -> Trial:
        """The trial with its prediction, its error and a few samples."""
        trial = super().judge(trial)
        if trial.outcome != "ok":
            return trial
        return self._on_device(trial)

    def _on_device(self, trial: Trial) -> Trial:
        try:
            verdict = self._verdict(check.awkward(self.workload, trial.config), trial.config)
            if verdict.passed:
                launch = self._launch(trial.config, self.workload, self._tensors)
                samples = self._stopwatch.samples_us(launch, SCREEN_SAMPLES)
        except CompileError as error:
            return replace(trial, outcome="compile_failed", reason=str(error))
        except RuntimeError as error:  # Triton's and PyTorch's class for a failed launch
            return replace(trial, outcome="crashed", reason=f"{type(error).__name__}: {error}")
        if not verdict.passed:
            return replace(trial, outcome="wrong", reason=verdict.reason, error=verdict.error)
        return replace(trial, samples_us=tuple(samples), error=verdict.error)

    def race(self, trials: Iterable[Trial]) -> list[Trial]:
        """Checks finalists on the real shape and times them in interleaved rounds."""
        finalists = list(trials)
        judged = [self._real_shape(trial) for trial in finalists]
        right = [trial for trial in judged if trial.outcome == "ok"]
        launches = [self._launch(t.config, self.workload, self._tensors) for t in right]
        samples = self._stopwatch.rounds_us(launches, RACE_ROUNDS) if right else []
        raced = [replace(t, samples_us=tuple(s)) for t, s in zip(right, samples, strict=True)]
        raced.sort(key=lambda trial: trial.median_us or math.inf)
        return raced + [trial for trial in judged if trial.outcome != "ok"]

    def _real_shape(self, trial: Trial) -> Trial:
        try:
            verdict = self._verdict(self.workload, trial.config)
        except RuntimeError as error:
            return replace(trial, outcome="crashed", reason=f"{type(error).__name__}: {error}")
        if verdict.passed:
            return replace(trial, error=verdict.error)
        return replace(trial, outcome="wrong", reason=verdict.reason, error=verdict.error)

    def _verdict(self, shape: Workload, config: Config) -> check.Verdict:
        import torch

        made = check.tensors(shape, "cuda")
        self._launch(config, shape, made)()
        return check.compare(shape, made, self._scale, torch.float32)

    def _launch(self, config: Config, workload: Workload, tensors: Any) -> Any:
        """A function that launches the config; the pool has put its binary in the cache."""
        aligned = self.kernel.module.is_aligned(tensors)
        compiled = self._language.compile(self.kernel, workload, config, self.arch, aligned)

        def launch() -> None:
            self._language.launch(self.kernel, compiled, tensors, workload, config, self._scale)

        return launch


def _too_large(resources: Resources, arch: Arch) -> str:
    return (
        f"the compiled block needs {resources.smem_bytes:,} B of shared memory and "
        f"{resources.registers} registers per thread: it fits no SM of {arch.name}, which gives a "
        f"block {arch.smem_per_block_bytes:,} B and {arch.registers_per_sm:,} registers"
    )
