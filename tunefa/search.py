"""The search: propose, compile, check, time, keep.

For each kernel that serves the workload: the rules leave feasible configs, a strategy proposes
among them, an objective makes trials of them, every trial goes to the journal, the finalists race,
and the winner becomes a record in the user's store.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from optuna.storages import BaseStorage

from tunefa import (
    final,
    loop,
    measured,
    problem,
    race,
    replayed,
    resume,
    strategies,
    study,
)
from tunefa.arch import Arch, Device, NpuArch
from tunefa.budget import Budget
from tunefa.evaluate import Objective, Predicted
from tunefa.journal import Journal
from tunefa.kernel import Kernel
from tunefa.landscape import Landscape
from tunefa.modelled import Estimated, Modelled
from tunefa.record import Objective as Kind
from tunefa.record import Record
from tunefa.space import Feasible
from tunefa.store import Store
from tunefa.tally import Finished, Tally
from tunefa.trial import Config, Mode, Trial, time_us
from tunefa.winner import Winner
from tunefa.workers import Workers
from tunefa.workload import Workload


@dataclass(frozen=True)
class Request:
    """What to search, and how."""

    workload: Workload
    arch: Arch
    device: Device
    measured: bool
    kernels: tuple[Kernel, ...]
    budget: Budget
    strategy: str = "auto"
    seed: int = 0
    workers: int | None = None
    finalists: int = 8
    """How many race for the win, beside those they must beat."""
    resume: Path | None = None
    """The journal to go on with, see `tunefa.resume`."""
    mode: Mode = "eager"
    """How launches are timed, see `tunefa.timing`; nothing where nothing is measured."""
    storage: str | None = None
    """The database for the Optuna studies; None for a file beside the journal."""
    replay: Landscape | None = None
    """What answers in place of a device or a compiler; nothing is stored then."""
    estimate: bool = False
    """Whether formulas answer in place of an NPU's compiler."""

    @property
    def objective(self) -> Kind:
        """What its times are."""
        if self.replay is not None:
            return "replayed"
        if self.measured:
            return "measured"
        if isinstance(self.arch, NpuArch):
            return "estimated" if self.estimate else "modelled"
        return "predicted"

    @property
    def serving_mode(self) -> Mode | None:
        """How what it finds was timed; None where a model says the time."""
        if self.replay is not None:
            return self.replay.mode
        return self.mode if self.measured else None


@dataclass(frozen=True)
class Progress:
    """Where a search stands."""

    kernel: str
    done: int
    failed: int
    best: Trial | None
    elapsed_s: float
    fraction: float
    """Of the budget, how much is used."""
    stage: str
    earlier: float = 0.0
    """Of the budget, how much the search that this one goes on with has used."""


@dataclass(frozen=True)
class Result:
    """What a search found."""

    request: Request
    record: Record | None
    """The winner; None when nothing valid was found."""
    finished: tuple[Finished, ...]
    feasible: dict[str, Feasible]
    elapsed_s: float
    journal: Path
    stored: Path | None
    interrupted: bool
    left_early: Mapping[str, float] = field(default_factory=dict)
    """By kernel that had no chance any more, how much slower its best was than another's."""

    def top(self, n: int) -> list[Finished]:
        """The n best that are right, best first; those that raced before those that did not.

        Of equals the one that became the record comes first.
        """
        right = [f for f in self.finished if f.trial.outcome == "ok" and f.trial.median_us]
        return sorted(right, key=lambda f: (*_standing(f), not self._became_the_record(f)))[:n]

    def _became_the_record(self, finished: Finished) -> bool:
        best = self.record
        return best is not None and (finished.kernel, dict(finished.trial.config)) == (
            best.kernel,
            best.config,
        )


@dataclass
class _State(Tally):
    """What a search holds while it runs."""

    request: Request
    report: Callable[[Progress], None]
    journal: Journal
    storage: BaseStorage
    process: Workers | None
    """Where kernels run; None where nothing is measured."""
    earlier: int = 0
    """Trials of the search that this one goes on with."""
    stage: str = "search"
    interrupted: bool = False
    raced: set[str] = field(default_factory=set)
    """The kernels whose race came to an end."""
    winners: list[Winner] = field(default_factory=list)
    """One for each of them that had a right finalist."""
    left_early: dict[str, float] = field(default_factory=dict)
    """See `Result`."""

    def keep(self, kernel: str, trial: Trial) -> None:
        """Writes a trial to the journal, counts it and reports."""
        self.journal.append(kernel, trial)
        self.take(kernel, trial)
        self.say(kernel)

    def say(self, kernel: str) -> None:
        """Reports where the search stands."""
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


def search(
    request: Request, store: Store, on_progress: Callable[[Progress], None] = lambda _: None
) -> Result:
    """Searches until the budget is used, the space is exhausted or nothing gets better.

    The kernels come one after the other, the most promising first; one that is far behind those
    before it is left early.

    A budget of seconds holds from its start to the stored record, so it leaves some for the race.
    Only a default that no compiler was done with by then is compiled beyond it.

    The winner is stored, unless it was replayed. After Ctrl-C the result holds what was found by
    then, `interrupted`. Raises TunefaError when the rules refuse every config of every kernel, and
    when the journal, the study or the store cannot be written.
    """
    feasible = {kernel.name: problem.feasible(request, kernel) for kernel in request.kernels}
    problem.check_feasible(request, feasible)
    problem.check_interpreters(request)
    database = study.database(request.storage) if request.storage is not None else None
    with resume.opened(request) as journal, _bench_process(request) as process:
        state = _State(
            request, on_progress, journal, database or study.beside(journal.path), process
        )
        some = [k for k in request.kernels if feasible[k.name].configs]
        before = final.share_before(request, len(some))
        try:
            searched = problem.by_promise(request, some, feasible)
            shares = request.budget.shares(len(searched), before)
            for kernel, share in zip(searched, shares, strict=True):
                _search_kernel(state, kernel, feasible[kernel.name], store, share)
            if not state.interrupted:
                state.winners = list(filter(None, [final.winner(request, state.winners, process)]))
        except KeyboardInterrupt:  # a second one, while the first one's best was being checked
            state.interrupted = True
        record = _record(state, feasible)
        stored = store.add(record) if record and request.replay is None else None
    finished = tuple(state.finished.values())
    elapsed = request.budget.elapsed_s
    return Result(
        request,
        record,
        finished,
        feasible,
        elapsed,
        journal.path,
        stored,
        state.interrupted,
        state.left_early,
    )


def _search_kernel(
    state: _State, kernel: Kernel, feasible: Feasible, store: Store, share: float
) -> None:
    """Searches one kernel until `share` of the budget is used, its race included."""
    request = state.request
    earlier = resume.trials(request.resume, kernel.name, feasible)
    trials = request.budget.trials_left(share, len(state.finished))
    for trial in earlier:
        state.take(kernel.name, trial)
    state.earlier += len(earlier)
    if state.interrupted:
        return
    known = problem.known_configs(request, kernel, store)
    saved = study.Saved(state.storage, f"{state.journal.path.stem}-{kernel.name}")
    asked = problem.of(request, kernel, feasible, known, trials)
    fresh = strategies.create(request.strategy, asked, saved)
    strategy = resume.Continued(fresh, earlier)
    to_beat_us = min((won.median_us for won in state.winners), default=math.inf)
    fair, patience = strategies.fair_trials(request.strategy), loop.patience(request.objective)
    outlook = loop.Outlook(to_beat_us, fair, patience).resumed(earlier)
    with _objective(request, kernel, state.process) as evaluator:
        own = loop.Share(request.budget, share, len(state.finished), evaluator.reserve_s)
        state.stage = "search"
        if request.budget.seconds is not None:  # of the time some is used, before the first trial
            state.say(kernel.name)
        try:
            for trial in loop.trials(strategy, evaluator, own, outlook):
                state.keep(kernel.name, trial)
                strategy.tell(trial)
        except KeyboardInterrupt:
            state.interrupted = True
        if outlook.lost:
            state.left_early[kernel.name] = outlook.slower_by
        finalists = _finalists(state, kernel, known, outlook.behind)
        _race(state, kernel, evaluator, finalists, own.deadline)


def _race(
    state: _State, kernel: Kernel, evaluator: Objective, finalists: list[Trial], until: float
) -> None:
    """Races the finalists of one kernel; what becomes of them is kept, as is who wins."""
    request = state.request
    state.stage = "race" if request.objective in ("measured", "replayed") else "check"
    if not state.interrupted:
        state.say(kernel.name)
    raced = evaluator.race(finalists, problem.default(request, kernel), until)
    state.raced.add(kernel.name)
    if raced.winner is not None:
        won = Winner(
            kernel, raced.winner, raced.certificate, request.serving_mode, request.objective
        )
        state.winners.append(won)
    for trial in raced.trials:
        state.keep(kernel.name, trial)


def _bench_process(request: Request) -> AbstractContextManager[Workers | None]:
    """The one that all kernels share."""
    if request.objective == "measured":
        return Workers(1)
    return contextlib.nullcontext()


def _objective(request: Request, kernel: Kernel, process: Workers | None) -> Objective:
    """What evaluates configs."""
    if request.replay is not None:
        return replayed.Replayed(request.replay, kernel)
    where = request.workload, request.arch, request.device, request.workers
    if request.measured:
        return measured.on(request.arch, request.mode)(kernel, *where, process)
    if request.objective == "estimated":
        return Estimated(kernel, *where)
    return (
        Modelled(kernel, *where) if request.objective == "modelled" else Predicted(kernel, *where)
    )


def _finalists(state: _State, kernel: Kernel, known: list[Config], behind: bool) -> list[Trial]:
    """The best so far, and the known configs they must beat; only the best after Ctrl-C.

    Of a kernel that is behind another it is the best and the default: the final between kernels
    says by how much. A default that no compiler was done with in time races all the same: where
    everything is slow, the search must not end with worse than nothing would have.
    """
    own = [f.trial for f in state.finished.values() if f.kernel == kernel.name]
    right = sorted((t for t in own if t.outcome == "ok"), key=time_us)
    if state.interrupted:
        return right[:1]
    default = problem.default(state.request, kernel)
    count, rivals = (1, [default]) if behind else (state.request.finalists, known)
    finalists = right[:count] + [t for t in right[count:] if t.config in rivals]
    if state.request.objective == "measured" and default and all(t.config != default for t in own):
        finalists.append(Trial(default, "ok"))
    return finalists


def _record(state: _State, feasible: Mapping[str, Feasible]) -> Record | None:
    """The best winner as a record."""
    request = state.request
    left = [kernel for kernel in request.kernels if kernel.name not in state.raced]
    found = [*state.winners, *final.unraced(request, left, list(state.finished.values()))]
    best = min(found, key=lambda won: won.median_us, default=None)
    if best is None or math.isinf(best.median_us):
        return None
    notes = {"trials": len(state.finished), "strategy": request.strategy}
    if request.objective == "modelled":
        said = {"ok", "compile_failed"}  # of a compiler that died nothing is known
        tried = {key for key, each in state.finished.items() if each.trial.outcome in said}
        notes["faster_untried"] = problem.faster_untried(request, feasible, tried, best.median_us)
    device_name = request.device.name if request.measured else None
    record = best.record(request.workload, request.arch, device_name, notes)
    return record if request.replay is None else replayed.relabelled(record, request.replay)


def _standing(finished: Finished) -> tuple[bool, float]:
    """Sort key: trials that raced first (a screening takes fewer samples), then the time."""
    screened = len(finished.trial.samples_us) < race.LOOK_EVERY
    return screened, time_us(finished.trial)
