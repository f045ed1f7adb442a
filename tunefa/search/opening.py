"""The opening of a search that times configs: the default of every kernel, before more of any.

It takes seconds, and says which kernel leads. The leader is searched first and has most of the
budget. Meanwhile compilers are idle, so they begin with what will be tried of the kernel that is
expected to lead.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from tunefa.compile.pool import compilers, warm_up
from tunefa.compile.workers import Workers
from tunefa.measure.objective import Objective
from tunefa.search import parts, proposer
from tunefa.search.parts import Part
from tunefa.search.preparation import LEADER, OTHERS, Entrant, Preparation
from tunefa.search.state import SearchState
from tunefa.spec.arch import GpuArch
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, Trial

OPENING_SHARE = 0.25
"""The share of the budget after which a default that is still compiled is waited for no longer, if
another kernel has a right config."""


def entered(
    state: SearchState,
    ordered: Sequence[Part],
    stack: contextlib.ExitStack,
    objective: Callable[[SearchState, Case], Objective],
) -> list[Entrant]:
    """The parts with their objectives, which compile the defaults; `stack` ends them. Where configs
    are timed they are in the order of the opening's times, else in their own."""
    request = state.request
    on_gpu = request.objective == "measured" and isinstance(request.target.arch, GpuArch)
    if state.compilers is None and (on_gpu or request.objective == "predicted"):
        made = compilers(request.workers or os.cpu_count() or 1, lasting=False)
        state.compilers = stack.enter_context(made)
        if on_gpu:
            _warm_up(made, ordered)
    entrants = [(part, stack.enter_context(objective(state, part.case))) for part in ordered]
    untried = [(part, each) for part, each in entrants if part.first and part.opened is None]
    count = min(request.workers or os.cpu_count() or 1, max(1, len(untried)))
    shared = state.compilers or stack.enter_context(compilers(count))
    if state.turn is not None:
        prepared = _prepared(state, entrants, shared)
        stack.enter_context(state.turn.taken(prepared))
        prepared.begin_all()
        entrants = prepared.entrants
        seconds = request.budget.seconds
        seconds = None if seconds is None else state.turn.seconds(seconds)
        state.request = replace(request, budget=request.budget.from_now(seconds))
        idle = 0
    else:
        for part, each in untried:
            each.prepare(part.first[0], shared)
        idle = shared.count - len(untried)
    if request.objective not in ("measured", "replayed"):
        return entrants
    if on_gpu and request.budget.seconds is not None and idle > 0:
        entrants = _early(state, entrants, shared, idle)
    known = any(trial.outcome == "ok" for part in ordered for trial in part.earlier)
    return _by_lead(state, [(_opened(state, *each, known), each[1]) for each in entrants])


def _warm_up(processes: Workers, ordered: Sequence[Part]) -> None:
    """Lets processes that compile for all kernels import the compiler of the first one that needs
    one."""
    for part in ordered:
        if not part.case.kernel.is_library:
            warm_up(processes, part.case.kernel.language)
            break


def _early(
    state: SearchState, entrants: Sequence[Entrant], shared: Workers, idle: int
) -> list[Entrant]:
    """Lets idle compilers begin with the configs of the kernel that is expected to lead."""
    made = list(entrants)
    for place, (part, objective) in enumerate(made):
        if not part.case.kernel.is_library and part.first and part.opened is None:
            asked, configs = _asked_early(state, part, idle)
            for config in configs:
                objective.prepare(config, shared)
            made[place] = asked, objective
            break
    return made


def _asked_early(state: SearchState, part: Part, count: int) -> tuple[Part, list[Config]]:
    """Asks the strategy of a kernel for its first `count` configs after the default."""
    if state.model is not None:
        part = replace(part, expected_us=state.model.expected_us(part.case, part.feasible))
    strategy = proposer.strategy(state, part, None)
    if part.opened is None:
        strategy.ask()  # the default, which the opening tries
    asked = (strategy.ask() for _ in range(count))
    configs = [config for config in asked if config is not None]
    return replace(part, strategy=proposer.AskedEarly(strategy, configs)), configs


def _prepared(state: SearchState, entrants: Sequence[Entrant], shared: Workers) -> Preparation:
    """Configs that are compiled before the search has the GPU: defaults, and some of all kernels
    that may win, most of them of the one that leads."""
    prepared = Preparation(state, shared, entrants)
    prepared.is_enough()  # compilers begin with the defaults, while the model is asked
    led = parts.by_lead(state, [part for part, _ in entrants])
    searched = [part.name for part in led if not (part.is_single or part.behind)]
    counts = list(zip(searched, (LEADER, *[OTHERS] * len(searched)), strict=False))
    prepared.choose(counts, lambda part, count: _asked_early(state, part, count))
    return prepared


def _opened(state: SearchState, part: Part, objective: Objective, known: bool) -> Part:
    """The part with the trial of its default; without it if there is no default, or no time.

    A default that is not ready in time is waited for only while no kernel has a right config;
    `known`: one had in the search that this one continues.
    """
    if state.interrupted or not part.first or part.opened is not None:
        return part
    if state.request.budget.seconds is not None:  # some time is used before the first trial
        state.report_progress(part.name)
    objective.submit(part.first[0])
    wait_s = math.inf
    if known or state.best is not None:
        wait_s = max(0.0, state.request.budget.patience(OPENING_SHARE) - time.monotonic())
    try:
        trial: Trial | None = objective.next(wait_s)
        if trial is None:
            return part
        part = part.knowing(trial)
        state.keep(part.name, trial)
    except KeyboardInterrupt:
        state.interrupted = True
    return part


def _by_lead(state: SearchState, entrants: Sequence[Entrant]) -> list[Entrant]:
    """The entrants in the order of `parts.by_lead`."""
    objectives = {part.name: objective for part, objective in entrants}
    led = parts.by_lead(state, [part for part, _ in entrants])
    return [(part, objectives[part.name]) for part in led]
