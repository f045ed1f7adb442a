"""The objective without a device: compilers in a pool, the cost model for the time."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from concurrent import futures
from dataclasses import replace
from typing import Literal

from tunefa.compile import languages
from tunefa.compile.pool import CompilePool, Pending
from tunefa.costmodel import gpu as model
from tunefa.measure import check
from tunefa.measure.objective import Raced
from tunefa.spec.arch import GpuArch
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources, Trial, time_us


class Predicted:
    """Compiles for the arch, takes resources from the compiler and the time from the model."""

    kind: Literal["measured", "predicted"] = "predicted"
    reserve_s = 5.0
    """The interpreter takes 2 s on two idle cores, nearly all of it to start."""

    def __init__(self, case: Case, workers: int | None = None) -> None:
        self.case = case
        if self.kind == "predicted" and not languages.has_interpreter(case.kernel.language):
            self.reserve_s = 0.0
        gate_runs = check.ragged if self.kind == "measured" else None
        self._pool = CompilePool(case, workers, also=gate_runs)
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
        case, arch = self.case, gpu(self.case.arch)
        tiling = case.tiling(trial.config)
        prediction = model.predict(case.workload, arch, case.device, tiling, trial.resources)
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
        if not languages.has_interpreter(self.case.kernel.language):
            return Raced(ranked, ranked[0] if ranked else None)
        for place, trial in enumerate(ranked):
            if place and time.monotonic() >= until:
                break
            try:
                verdict = check.in_interpreter(self.case, trial.config)
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
