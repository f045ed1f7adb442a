"""Decides which kernel wins where several were searched.

A device drifts between the races of two kernels. So on a device the kernels' winners race once
more, against each other. Predicted and replayed times do not drift, and are compared as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tunefa.compile import languages
from tunefa.compile.workers import Workers
from tunefa.costmodel import anchored
from tunefa.measure import measured, racing
from tunefa.search.request import FinishedTrial, Request
from tunefa.search.state import SearchState
from tunefa.search.winner import Winner
from tunefa.spec.kernel import Kernel
from tunefa.spec.trial import identity, time_us

RACE_S = 5.0
"""Seconds for this race. On an H200, four kernels take 1 s in the process that timed them before;
a new one, after a crash, takes 4 s more."""
MAX_SHARE = 0.2
"""The largest part of a budget of seconds that this race may take."""


def share_before(request: Request, kernels: int) -> float:
    """The part of a budget of seconds that is left for the searches of so many kernels."""
    seconds = request.budget.seconds
    if kernels < 2 or seconds is None or request.objective != "measured":
        return 1.0
    return 1.0 - min(MAX_SHARE, RACE_S / seconds)


def winner(
    request: Request, winners: Sequence[Winner], process: Workers | None = None
) -> Winner | None:
    """The best of the kernels' winners; None if there are none.

    `kernels` in its certificate says how the kernels compare. The race runs in `process`, a single
    worker.
    """
    ranked = sorted(winners, key=lambda won: won.rank_us)
    if len(ranked) < 2 or request.objective != "measured":
        return ranked[0] if ranked else None
    first, *rivals = ranked
    case = request.case(first.kernel)
    device = measured.objective(case.arch, request.mode)(case, request.workers, process)
    others = [(won.kernel.name, won.trial) for won in rivals]
    with device:
        raced = device.race_kernels(first.trial, others, request.budget.deadline())
    if isinstance(raced, measured.LostProcess):
        why = f"the fastest by the kernels' own races; their common race was lost: {raced.reason}"
        return _certified(first, {"decision": why})
    won = next(won for won in ranked if won.kernel.name == raced.kernel)
    return _certified(won, raced.certificate)


def best(state: SearchState, winners: Sequence[Winner]) -> Winner | None:
    """The best of several winners; None if there are none.

    Where times are predicted, the best known config wins unless another beats it beyond the error
    of the comparison. Then the certificate says how they compare.
    """
    request, anchor = state.request, state.anchor
    first = min(winners, key=lambda won: won.rank_us, default=None)
    if first is None or request.objective != "predicted":
        return first
    if anchor is None:
        right = (each.trial for each in state.finished.values() if each.trial.outcome == "ok")
        passed_over = any(time_us(trial) < first.median_us for trial in right)
        why = anchored.without_anchor(request.target.arch, passed_over)
        return replace(first, certificate={"decision": why})
    by_key = {(won.kernel.name, identity(won.trial.config)): won for won in winners}
    kernel, trial = anchored.ranked(anchor, [(w.kernel.name, w.trial) for w in winners])[0]
    tried = [(each.kernel, each.trial) for each in state.finished.values()]
    decision = anchored.decision(anchor, (kernel, trial), tried)
    return replace(by_key[kernel, identity(trial.config)], certificate=decision.to_dict())


def winners_without_race(
    request: Request, kernels: Sequence[Kernel], finished: Sequence[FinishedTrial]
) -> list[Winner]:
    """The best right trial of each kernel that had no race because of Ctrl-C."""
    found = []
    for kernel in kernels:
        own = [each.trial for each in finished if each.kernel == kernel.name]
        # A prediction in a language without an interpreter is never checked.
        checked = request.measured or languages.has_interpreter(kernel.language)
        left = racing.without_race(own, "interrupted", checked)
        if left.winner is not None:
            certificate = left.certificate if request.objective == "measured" else None
            mode, objective = request.serving_mode, request.objective
            found.append(Winner(kernel, left.winner, certificate, mode, objective))
    return found


def _certified(won: Winner, kernels: dict[str, Any]) -> Winner:
    return replace(won, certificate={**(won.certificate or {}), "kernels": kernels})
