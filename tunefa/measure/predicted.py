"""The objective without a device: a pool of compilers, and the cost model's time."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Hashable, Iterable
from concurrent.futures import TimeoutError
from dataclasses import replace
from typing import Literal

from tunefa.compile import languages
from tunefa.compile.pool import CompilePool, Pending, Rank
from tunefa.compile.workers import ProcessLost, TaskRaised, Workers
from tunefa.costmodel import anchored
from tunefa.costmodel.anchor import Anchor
from tunefa.costmodel.before_compiling import order_parameters
from tunefa.costmodel.estimate import estimate
from tunefa.costmodel.ranking import rank_us
from tunefa.errors import TunefaError
from tunefa.measure import gate, launches
from tunefa.measure.objective import Raced
from tunefa.spec.arch import GpuArch
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Resources, Trial, identity

RESERVE_PER_COMPILE = 1.5
"""The interpreter's check takes up to so many times as long as the first compiler: both start a
process that imports Triton, and the check also imports PyTorch."""


class Predicted:
    """Compiles for the arch; the compiler says the resources and the cost model the time."""

    kind: Literal["measured", "predicted"] = "predicted"
    reserve_s = 5.0
    """The interpreter takes 2 s on two idle cores, most of it to start. On a busy machine it takes
    longer, and so does the first compiler: the reserve is at least RESERVE_PER_COMPILE times that
    compiler's time."""

    def __init__(
        self,
        case: Case,
        workers: int | None = None,
        compilers: Workers | None = None,
        anchor: Anchor | None = None,
    ) -> None:
        """Compiles in `workers` processes of its own, or in `compilers`, which may be shared. With
        an anchor, times are those of the cost model corrected by what was measured."""
        self.case = case
        self.anchor = anchor
        if self.kind == "predicted" and not languages.has_interpreter(case.kernel.language):
            self.reserve_s = 0.0
        self._gate_runs = launches.shape_to_check if self.kind == "measured" else None
        self._pool = CompilePool(case, workers, self._gate_runs, compilers)
        self._pending: deque[Pending] = deque()
        self._prepared: dict[tuple[object, ...], Pending] = {}
        self._is_timed = False
        self._by_code: dict[Hashable, tuple[float, float]] = {}
        """The predicted time of each machine code that was compiled, and its sd."""
        self.width = 2 * self._pool.workers

    def __enter__(self) -> Predicted:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop()

    def prepare(self, config: Config, compilers: Workers) -> None:
        """Starts compiling before the config's turn."""
        pool = CompilePool(self.case, None, self._gate_runs, compilers)
        started = pool.submit(config, Rank.LATER if compilers.lasting else Rank.NOW)
        self._prepared[identity(config)] = self._timed(started)

    def is_prepared(self, config: Config) -> bool:
        """Returns whether its compiler has ended."""
        return self._prepared[identity(config)].future.done()

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        """Starts compiling, unless the config was prepared."""
        waiting = (pending for pending in self._pending if not pending.was_stopped)
        if any(identity(pending.config) == identity(config) for pending in waiting):
            return
        prepared = self._prepared.pop(identity(config), None)
        if prepared is None or prepared.was_stopped:
            prepared = self._timed(self._pool.submit(config, rank))
        else:
            self._pool.hurry(prepared)
        self._pending.append(prepared)

    def _timed(self, started: Pending) -> Pending:
        """Lets the first config that is started say how slow the machine is."""
        if self.kind == "predicted" and self.reserve_s and not self._is_timed:
            self._is_timed, start = True, time.monotonic()

            def note(_: object) -> None:
                took_s = time.monotonic() - start
                self.reserve_s = max(self.reserve_s, RESERVE_PER_COMPILE * took_s)

            started.future.add_done_callback(note)
        return started

    def next(self, wait_s: float = math.inf) -> Trial | None:
        """Returns the first trial that is ready; None if none is within `wait_s` seconds."""
        compiled = self._compiled(wait_s)
        return None if compiled is None else self.judge(compiled)

    def is_ready(self, wait_s: float) -> bool:
        """Returns whether a config in progress is compiled; waits up to `wait_s` seconds for one.

        One whose compiler was stopped is in progress no more.
        """
        return self._has_compiled(wait_s)

    def _has_compiled(self, wait_s: float) -> bool:
        """Answers `is_ready` by the compilers alone: a subclass has more to ask there."""
        self._pending = deque(each for each in self._pending if not each.was_stopped)
        return self._pool.wait_for_one(self._pending, wait_s)

    def is_compiled(self) -> bool:
        """Whether every config that was submitted and not returned yet is compiled."""
        return all(pending.future.done() for pending in self._pending)

    def _compiled(self, wait_s: float) -> Trial | None:
        """Returns the first trial whose compiler has ended; None after `wait_s` seconds.

        A config whose compiler another objective has stopped is left out: it is proposed again.
        """
        self._has_compiled(wait_s)
        ready = next((p for p in self._pending if p.future.done()), None)
        if ready is None:
            return None
        self._pending.remove(ready)
        return ready.trial()

    def settle(self) -> Trial | None:
        """Returns None: nothing runs ahead."""
        return None

    def judge(self, trial: Trial) -> Trial:
        """Returns a compiled trial with its time; it is `refused` where its CTA fits no SM."""
        if trial.outcome != "ok" or trial.resources is None or self.case.kernel.is_library:
            return trial
        time_us, sd = self._predicted(trial.config, trial.resources)
        if math.isinf(time_us):
            reason = _too_large(trial.resources, gpu(self.case.arch))
            return replace(trial, outcome="refused", reason=reason)
        return replace(trial, predicted_us=time_us, predicted_sd=sd)

    def _predicted(self, config: Config, resources: Resources) -> tuple[float, float]:
        """The time of a compiled config in us, and the sd of its logarithm: those of the first
        config with the same code that runs its tiles in the same order, as no other parameter has
        an effect beside the code."""
        if resources.code is None:
            return self._estimated(config, resources)
        order = order_parameters(self.case.kernel.space)
        code = resources.code, *(config[name] for name in order)
        if code not in self._by_code:
            self._by_code[code] = self._estimated(config, resources)
        return self._by_code[code]

    def _estimated(self, config: Config, resources: Resources) -> tuple[float, float]:
        if self.anchor is not None:
            known = self.anchor.expected(self.case.kernel.name, config, resources)
            return known.time_us, known.sd
        made = estimate(self.case, config, resources)
        return made.time_us, made.sd

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """Checks the best trial in the interpreter; if it is wrong, the next best is checked.

        The first check is always made, further ones only if there is time. A config that spills
        counts as slower by the model's error (see `rank_us`). Among equals the default comes first.
        With an anchor, known configs come before others that do not beat the best of them beyond
        the error. In a language without an interpreter the best wins unchecked.
        """
        self._abandon()
        ranked = sorted(trials, key=lambda t: (rank_us(t), t.config != default))
        if self.anchor is not None:
            name = self.case.kernel.name
            own = anchored.ranked(self.anchor, [(name, trial) for trial in ranked])
            ranked = [trial for _, trial in own]
        if not languages.has_interpreter(self.case.kernel.language):
            return Raced(ranked, ranked[0] if ranked else None)
        for place, trial in enumerate(ranked):
            if place and time.monotonic() >= until:
                break
            try:
                compared = gate.in_interpreter(self.case, trial.config)
            except (TimeoutError, ProcessLost, TaskRaised, TunefaError) as error:
                ranked[place] = _lost(trial, error)
                continue
            checked = replace(trial, error=compared.error)
            if compared.passed:
                return Raced([checked, *ranked[place + 1 :], *ranked[:place]], checked)
            ranked[place] = replace(checked, outcome="wrong", reason=compared.reason)
        return Raced(ranked)

    def _abandon(self) -> None:
        """Drops the configs that the compilers have not finished, and leaves the cores idle."""
        self._pool.abandon(self._pending)
        self._pending.clear()


def _lost(trial: Trial, error: Exception) -> Trial:
    """The trial of a config whose check in the interpreter did not end."""
    if isinstance(error, TimeoutError):
        limit_s = gate.INTERPRETER_LIMIT_S
        return replace(trial, outcome="timeout", reason=f"interpreting took over {limit_s:.0f} s")
    said = f"the interpreter {error}" if isinstance(error, ProcessLost) else str(error)
    return replace(trial, outcome="crashed", reason=said)


def _too_large(resources: Resources, arch: GpuArch) -> str:
    return (
        f"the compiled CTA needs {resources.smem_bytes:,} B of shared memory and "
        f"{resources.registers} registers per thread: it does not fit an SM of {arch.name}, which "
        f"gives a CTA {arch.smem_per_block_bytes:,} B and {arch.registers_per_sm:,} registers"
    )
