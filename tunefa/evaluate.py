"""Objectives say what becomes of a config: predicted without a device, measured on the one there.

Both compile in a pool and hand back trials as they finish; a third replays what was recorded
(tunefa/replayed.py). The search loop does not know which one it drives.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from concurrent import futures
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from tunefa import check, languages, model
from tunefa.arch import Arch, Device, GpuArch, gpu
from tunefa.compile_pool import CompilePool, Pending
from tunefa.kernel import Kernel
from tunefa.trial import Config, Resources, Trial, time_us
from tunefa.workload import Workload


@dataclass(frozen=True)
class Raced:
    """What became of finalists."""

    trials: list[Trial]
    """All of them; ones found wrong as such."""
    winner: Trial | None = None
    certificate: dict[str, Any] | None = None
    """What bounds the claim that the winner is the fastest; None when nothing does."""


class Objective(Protocol):
    """Evaluates configs of one kernel for one workload. A context manager."""

    width: int
    """Configs to keep under way."""
    reserve_s: float
    """Seconds that `race` usually takes at most."""

    def __enter__(self) -> Objective: ...

    def __exit__(self, *_: object) -> None: ...

    def submit(self, config: Config) -> None:
        """Starts on a config."""

    def next(self, wait_s: float = math.inf) -> Trial | None:
        """Waits for the next trial, None after `wait_s` seconds; there must be one under way."""

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """Finalists again, more carefully, until `time.monotonic` is `until`.

        What is under way is abandoned: nothing runs beside it, and nothing may be submitted after.
        """


class Predicted:
    """Compiles for the arch, takes resources from the compiler and the time from the model."""

    kind: Literal["measured", "predicted"] = "predicted"
    reserve_s = 5.0
    """The interpreter takes 2 s on two idle cores, nearly all of it to start."""

    def __init__(
        self, kernel: Kernel, workload: Workload, arch: Arch, device: Device, workers: int | None
    ):
        self.kernel, self.workload, self.arch, self.device = kernel, workload, arch, device
        if self.kind == "predicted" and not languages.has_interpreter(kernel.language):
            self.reserve_s = 0.0
        self._pool = CompilePool(kernel, workload, arch, workers, self.kind == "measured")
        self._pending: deque[Pending] = deque()
        self.width = 2 * self._pool.workers

    def __enter__(self) -> Predicted:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop()

    def submit(self, config: Config) -> None:
        """Starts compiling."""
        self._pending.append(self._pool.submit(config))

    def next(self, wait_s: float = math.inf) -> Trial | None:
        """The first that is ready, judged; None if none is within `wait_s` seconds."""
        compiled = self._compiled(wait_s)
        return None if compiled is None else self.judge(compiled)

    def _compiled(self, wait_s: float) -> Trial | None:
        """The first that is compiled, or failed to."""
        timeout_s = None if math.isinf(wait_s) else wait_s
        futures.wait([p.future for p in self._pending], timeout_s, futures.FIRST_COMPLETED)
        ready = next((p for p in self._pending if p.future.done()), None)
        if ready is None:
            return None
        self._pending.remove(ready)
        return ready.trial()

    def judge(self, trial: Trial) -> Trial:
        """A compiled trial with its time; refused where its block fits no SM."""
        if trial.outcome != "ok" or trial.resources is None:
            return trial
        tiling = self.kernel.space.tiling(trial.config, self.workload, self.arch)
        arch = gpu(self.arch)
        prediction = model.predict(self.workload, arch, self.device, tiling, trial.resources)
        if math.isinf(prediction.time_us):
            return replace(trial, outcome="refused", reason=_too_large(trial.resources, arch))
        return replace(trial, predicted_us=prediction.time_us)

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """Checks the best by running it in the interpreter; a wrong one gives way to the next.

        One is checked in any case, another only if there is time. Of equals the default comes
        first. In a language without an interpreter the best wins unchecked.
        """
        self._abandon()
        ranked = sorted(trials, key=lambda t: (time_us(t), t.config != default))
        if not languages.has_interpreter(self.kernel.language):
            return Raced(ranked, ranked[0] if ranked else None)
        for place, trial in enumerate(ranked):
            if place and time.monotonic() >= until:
                break
            try:
                verdict = check.in_interpreter(self.kernel, self.workload, trial.config)
            except RuntimeError as error:
                ranked[place] = replace(trial, outcome="crashed", reason=str(error))
                continue
            checked = replace(trial, error=verdict.error)
            if verdict.passed:
                return Raced([checked, *ranked[place + 1 :], *ranked[:place]], checked)
            ranked[place] = replace(checked, outcome="wrong", reason=verdict.reason)
        return Raced(ranked)

    def _abandon(self) -> None:
        """Ends the compilers and what they have not finished."""
        self._pool.stop()
        self._pending.clear()


def _too_large(resources: Resources, arch: GpuArch) -> str:
    return (
        f"the compiled block needs {resources.smem_bytes:,} B of shared memory and "
        f"{resources.registers} registers per thread: it fits no SM of {arch.name}, which gives a "
        f"block {arch.smem_per_block_bytes:,} B and {arch.registers_per_sm:,} registers"
    )
