"""A search: for each kernel that serves the workload, the rules leave feasible configs, a strategy
proposes some of them, an objective turns them into trials, and every trial is written to the
journal. Then the best trials, the finalists, race. The winner becomes a record in the user's store.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from tunefa.compile import pool
from tunefa.compile.workers import Workers
from tunefa.costmodel import anchored
from tunefa.costmodel.ranking import rank_us
from tunefa.measure import measured, replayed
from tunefa.measure.npu import Estimated, Modelled
from tunefa.measure.objective import Objective
from tunefa.measure.predicted import Predicted
from tunefa.search import (
    candidates,
    database,
    kernel_race,
    loop,
    opening,
    parts,
    preparation,
    proposer,
    race_time,
    resume,
    retiming,
    study,
)
from tunefa.search.parts import Part
from tunefa.search.request import Processes, Progress, Request, Result
from tunefa.search.share import Share
from tunefa.search.state import SearchState
from tunefa.search.stopping import StoppingRule
from tunefa.search.winner import Winner
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case
from tunefa.spec.trial import Trial, identity
from tunefa.store.record import Record
from tunefa.store.results import Store


def search(
    request: Request,
    store: Store,
    on_progress: Callable[[Progress], None] = lambda _: None,
    shared: Processes | None = None,
) -> Result:
    """Searches until the budget is used, every config is tried, or nothing gets better.

    The kernels are searched one after the other, each from its default on. The defaults of all are
    compiled at once at the start. Where configs are timed, they are also timed first, and the
    kernel whose default is the fastest comes first; elsewhere the order is that of their predicted
    times. A kernel that is far slower than those before it is given up early.

    A budget of seconds includes the race and the record's storing. Compilers that are at work when
    it ends are stopped. It is exceeded only to try the defaults: up to `budget.FLOOR_S`, and longer
    only while no kernel has a right config. A measured search uses the `shared` processes, if there
    are any, and leaves them to the next one. With a turn at the GPU, its seconds count from the
    moment when it has the GPU, and it may leave it to another search: `tunefa.search.gpu_turns`.

    The winner is stored, unless it was replayed. After Ctrl-C the result holds what was found until
    then, and is marked `interrupted`. Raises TunefaError when the rules refuse every config of
    every kernel, and when the journal, the study or the store cannot be written; NoTurnLeft if it
    gets no turn at the GPU.
    """
    model = None if shared is None else shared.model
    if shared is not None and shared.turn is not None and request.resume is None:
        cases = [request.case(kernel) for kernel in request.kernels]
        preparation.begin_defaults(cases, shared.compilers)
    feasible = candidates.feasible_by_kernel(request, model)
    candidates.check_interpreters(request)
    asked = database.opened(request.storage) if request.storage is not None else None
    with resume.opened(request) as journal, _bench_process(request, shared) as process:
        storage = asked or study.beside(journal.path)
        state = SearchState(request, on_progress, journal, storage, process)
        if shared is not None:
            state.compilers, state.turn = shared.compilers, shared.turn
            state.model, state.compiled = model, shared.compiled
        _search_kernels(state, feasible, store)
        record = _record(state, feasible)
        stored = store.add(record) if record and request.replay is None else None
    return Result(
        request=state.request,
        record=record,
        finished=tuple(state.finished.values()),
        feasible=feasible,
        elapsed_s=state.request.budget.elapsed_s,
        journal=journal.path,
        stored=stored,
        interrupted=state.interrupted,
        left_early=state.left_early,
        settled=state.settled,
        gave_way=state.gave_way,
        hoped={} if request.sweep is None else state.hoped,
    )


def _search_kernels(state: SearchState, feasible: Mapping[str, Feasible], store: Store) -> None:
    """Searches the kernels one after the other, then races their winners against each other."""
    request = state.request
    with contextlib.ExitStack() as stack:
        if state.model is not None:
            stack.callback(state.model.forget, request.workload)
        if state.compilers is not None:
            stack.callback(pool.forget, state.compilers, map(request.case, request.kernels))
        try:
            state.anchor = parts.anchor(request, store)
            ordered = parts.ordered(state, feasible, store)
            for part, objective in opening.entered(state, ordered, stack, _objective):
                _search_kernel(state, part, objective)
            if not state.interrupted and state.anchor is None:
                best = kernel_race.winner(state.request, state.winners, state.process)
                state.winners = [] if best is None else [best]
        except KeyboardInterrupt:  # a second Ctrl-C, while the best was checked after the first one
            state.interrupted = True


def _search_kernel(state: SearchState, part: Part, objective: Objective) -> None:
    """Searches and races one kernel within its share of the budget."""
    request = state.request
    trials_left = request.budget.trials_left(part.share, len(state.finished))
    state.count_earlier(part.name, part.earlier)
    if state.interrupted:
        return
    stopping = proposer.stopping_rule(state, part)
    started, least = len(state.finished), 0 if part.tried else 1
    reserve_s = parts.reserve_s(state, part, objective.reserve_s, race_time.FINALISTS)
    again = retiming.of(state, part, objective)
    meanwhile = None if again is None else again.again
    share = Share(request.budget, part.share, started, reserve_s, least, state.turn, meanwhile)
    state.stage = "search"
    if request.budget.seconds is not None:  # some time is used before the first trial
        state.report_progress(part.name)
    try:
        if not stopping.lost:  # else the model would be asked about all configs in vain
            strategy = part.strategy or proposer.strategy(state, part, trials_left)
            for trial in loop.trials(strategy, objective, share, stopping):
                state.keep(part.name, trial)
                strategy.tell(trial)
    except KeyboardInterrupt:
        state.interrupted = True
    while (last := objective.settle()) is not None:
        state.keep(part.name, last)
    state.gave_way |= stopping.gave_way or share.is_over
    if stopping.lost or (part.behind and stopping.behind):
        state.left_early[part.name] = stopping.slower_by
    if stopping.none_left:
        tried = {identity(trial.config) for trial in state.trials_of(part.name)}
        left = sum(identity(config) not in tried for config in part.feasible.configs)
        state.settled |= {part.name: left} if left else {}
    finalists = _finalists(state, part, stopping.behind, again)
    if not _may_win(state, part.name, stopping) or _is_left_out(state, part, stopping):
        state.raced.add(part.name)  # it cannot win, so the interpreter need not check it
    else:
        _race(state, part, objective, finalists, share.deadline)


def _may_win(state: SearchState, kernel: str, stopping: StoppingRule) -> bool:
    """Whether a kernel may win where times are predicted: the interpreter checks it only then."""
    if state.request.objective != "predicted" or not state.winners:
        return True
    if state.anchor is None:
        return stopping.best_us < stopping.to_beat_us
    found = [(each.kernel, each.trial) for each in state.finished.values()]
    return anchored.ranked(state.anchor, found)[0][0] == kernel


def _is_left_out(state: SearchState, part: Part, stopping: StoppingRule) -> bool:
    """Whether the race of a kernel that has lost is left out, as a search that shares its GPU would
    take longer than it may. The race would only say how far behind the kernel is."""
    if state.turn is None or not stopping.behind or not state.winners:
        return False
    own_s = parts.reserve_s(state, part, parts.RACE_ALONE_S, race_time.ALONE)
    last_s = race_time.kernels_s([won.rank_us for won in state.winners])
    until = state.request.budget.deadline()
    return time.monotonic() + own_s + state.turn.pace * last_s > until


def _race(
    state: SearchState, part: Part, objective: Objective, finalists: list[Trial], until: float
) -> None:
    """Races the finalists of one kernel; keeps their trials and the winner."""
    request = state.request
    state.stage = "race" if request.objective in ("measured", "replayed") else "check"
    if not state.interrupted:
        state.report_progress(part.name)
    begun = time.monotonic()
    raced = objective.race(finalists, candidates.default(part.case), until)
    if state.turn is not None and len(raced.trials) > 1:
        state.turn.raced(_planned_s(request, raced.trials), time.monotonic() - begun)
    state.raced.add(part.name)
    if raced.winner is not None:
        timed = request.serving_mode, request.objective
        state.winners.append(Winner(part.case.kernel, raced.winner, raced.certificate, *timed))
    state.keep(part.name, *raced.trials)


def _planned_s(request: Request, raced: Sequence[Trial]) -> float:
    """The seconds that a race of these trials was planned to take."""
    best_us = min((rank_us(each) for each in raced if each.outcome == "ok"), default=0.0)
    return race_time.race_s(request.workload, best_us, len(raced))


def _bench_process(
    request: Request, shared: Processes | None
) -> AbstractContextManager[Workers | None]:
    """The process that times the configs of all kernels; None where nothing is measured."""
    if request.objective != "measured":
        return contextlib.nullcontext()
    return Workers(1) if shared is None else contextlib.nullcontext(shared.bench)


def _objective(state: SearchState, case: Case) -> Objective:
    """The objective that evaluates the configs of a case."""
    request = state.request
    if request.replay is not None:
        return replayed.Replayed(request.replay, case.kernel)
    if request.measured:
        kind_of = measured.objective(case.arch, request.mode)
        return kind_of(case, request.workers, state.process, state.compilers)
    if request.objective == "estimated":
        return Estimated(case)
    if request.objective == "modelled":
        return Modelled(case, request.workers)
    return Predicted(case, request.workers, state.compilers, state.anchor)


def _finalists(
    state: SearchState, part: Part, behind: bool, again: retiming.Retiming | None = None
) -> list[Trial]:
    """The best trials so far, and the known configs that they must beat; after Ctrl-C only the
    best.

    For a kernel that is `behind` another they are the best and the default: the race between
    kernels says how far behind it is. The default of a measured search races even if no compiler
    has finished it in time, so that a search never ends with a config that is slower than the
    default.
    """
    own = state.trials_of(part.name)
    right = retiming.ranked(own, {} if again is None else again.found)
    if state.interrupted:
        return right[:1]
    default = candidates.default(part.case)
    count, rivals = (1, [default]) if behind else (state.request.finalists, part.known)
    finalists = right[:count] + [t for t in right[count:] if t.config in rivals]
    if state.request.objective == "measured" and default and all(t.config != default for t in own):
        finalists.append(Trial(default, "ok"))
    return finalists


def _record(state: SearchState, feasible: Mapping[str, Feasible]) -> Record | None:
    """The record of the best winner; None if nothing valid was found."""
    request = state.request
    left = [kernel for kernel in request.kernels if kernel.name not in state.raced]
    finished = list(state.finished.values())
    found = [*state.winners, *kernel_race.winners_without_race(request, left, finished)]
    best = kernel_race.best(state, found)
    if best is None or math.isinf(best.median_us):
        return None
    notes = {**request.notes, "trials": len(state.finished), "strategy": request.strategy}
    if request.objective == "modelled":
        said = {"ok", "compile_failed"}  # a compiler that crashed said nothing about the config
        tried = {key for key, each in state.finished.items() if each.trial.outcome in said}
        notes["faster_untried"] = candidates.faster_untried(
            request, feasible, tried, best.median_us
        )
    device_name = request.target.device.name if request.measured else None
    best = replace(best, provenance=request.provenance(best.kernel))
    record = best.record(request.workload, request.target.arch, device_name, notes)
    return record if request.replay is None else replayed.relabelled(record, request.replay)
