"""The state of a search while it runs: its trials, its journal and the winners so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from optuna.storages import BaseStorage

from tunefa.compile.workers import Workers
from tunefa.costmodel.anchor import Anchor
from tunefa.costmodel.ranking import rank_us
from tunefa.search.compiled_before import CompiledBefore
from tunefa.search.gpu_turns import Turn
from tunefa.search.model_process import ModelProcess
from tunefa.search.request import FinishedTrial, Progress, Request
from tunefa.search.study import Study
from tunefa.search.winner import Winner
from tunefa.spec.trial import Trial, identity
from tunefa.store.journal import Journal


@dataclass
class SearchState:
    """The state of a search. It counts trials as they come, as a search may have thousands."""

    request: Request
    report: Callable[[Progress], None]
    journal: Journal
    storage: BaseStorage
    process: Workers | None
    """The process in which kernels run; None where nothing is measured."""
    finished: dict[tuple[str, tuple[object, ...]], FinishedTrial] = field(default_factory=dict)
    """The last trial of each config, by (kernel, config's identity)."""
    failed: int = 0
    best: Trial | None = None
    """The right trial with the least time."""
    earlier: int = 0
    """The number of trials of the search that this one continues."""
    anchor: Anchor | None = None
    """The configs known to be good, where times are predicted; None if there are none."""
    stage: str = "search"
    interrupted: bool = False
    raced: set[str] = field(default_factory=set)
    """The kernels whose race has ended."""
    winners: list[Winner] = field(default_factory=list)
    """The winner of each of these kernels that had a right finalist."""
    left_early: dict[str, float] = field(default_factory=dict)
    """See `Result.left_early`."""
    compilers: Workers | None = None
    """The processes that compile what is measured; with None, each kernel has its own."""
    model: ModelProcess | None = None
    """See `Processes.model`."""
    compiled: CompiledBefore | None = None
    """See `Processes.compiled`."""
    turn: Turn | None = None
    """See `Processes.turn`."""
    gave_way: bool = False
    """See `Result.gave_way`."""
    settled: dict[str, int] = field(default_factory=dict)
    """See `Result.settled`."""
    studies: dict[str, Study] = field(default_factory=dict)
    """The study of each kernel that has been searched."""

    def keep(self, kernel: str, *trials: Trial) -> None:
        """Writes trials to the journal, counts them and reports the progress."""
        self.journal.append(kernel, *trials)
        for trial in trials:
            self.count(kernel, trial)
            self.report_progress(kernel)

    def count(self, kernel: str, trial: Trial) -> None:
        """Counts a trial; a later one of a config replaces the earlier."""
        key = kernel, identity(trial.config)
        before = self.finished.get(key)
        self.finished[key] = FinishedTrial(kernel, trial)
        self.failed += trial.outcome != "ok"
        if before is not None:
            self.failed -= before.trial.outcome != "ok"
        if before is not None and before.trial is self.best:
            right = (f.trial for f in self.finished.values() if f.trial.outcome == "ok")
            self.best = min(right, key=rank_us, default=None)
        elif trial.outcome == "ok" and (self.best is None or rank_us(trial) < rank_us(self.best)):
            self.best = trial

    def count_earlier(self, kernel: str, trials: list[Trial]) -> None:
        """Counts trials of the search that this one continues."""
        for trial in trials:
            self.count(kernel, trial)
        self.earlier += len(trials)

    def trials_of(self, kernel: str) -> list[Trial]:
        """The last trial of each config of a kernel."""
        return [each.trial for each in self.finished.values() if each.kernel == kernel]

    @property
    def hoped(self) -> dict[str, float]:
        """See `Result.hoped`. Times of races are left out, as the studies know screenings only."""
        best_us = min((study.best_us for study in self.studies.values()), default=math.inf)
        gains = {name: study.hoped_gain(best_us) for name, study in self.studies.items()}
        return {name: gain for name, gain in gains.items() if gain is not None}

    def report_progress(self, kernel: str) -> None:
        """Reports the progress of the search."""
        budget, done = self.request.budget, len(self.finished)
        elapsed = budget.elapsed_s
        self.report(
            Progress(
                kernel=kernel,
                done=done,
                failed=self.failed,
                best=self.best,
                elapsed_s=elapsed,
                fraction=budget.fraction(elapsed, done),
                stage=self.stage,
                earlier=budget.fraction(0.0, self.earlier),
            )
        )
