"""Which kernel wins where several were searched.

Each kernel's race has its own time, and a device drifts between two. So on a device the winners
race once more, against each other; predicted or replayed times do not drift, and are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tunefa.compile import languages
from tunefa.compile.workers import Workers
from tunefa.measure import measured
from tunefa.search.request import FinishedTrial, Request
from tunefa.search.winner import Winner
from tunefa.spec.kernel import Kernel

RACE_S = 8.0
"""A new process with its CUDA context, and rounds of two or three launches."""
MOST = 0.2
"""The largest part of a budget of seconds that this race may take."""


def share_before(request: Request, kernels: int) -> float:
    """The part of a budget of seconds that is left for the searches of so many kernels."""
    seconds = request.budget.seconds
    if kernels < 2 or seconds is None or request.objective != "measured":
        return 1.0
    return 1.0 - min(MOST, RACE_S / seconds)


def winner(
    request: Request, winners: Sequence[Winner], process: Workers | None = None
) -> Winner | None:
    """The best of the kernels' winners; its certificate says by what, under `kernels`.

    They are raced in `process`, a single worker.
    """
    ranked = sorted(winners, key=lambda won: won.median_us)
    if len(ranked) < 2 or request.objective != "measured":
        return ranked[0] if ranked else None
    first, *rivals = ranked
    case = request.case(first.kernel)
    device = measured.objective(case.arch, request.mode)(case, request.workers, process)
    others = [(won.kernel.name, won.trial) for won in rivals]
    with device:
        raced = device.race_kernels(first.trial, others, request.budget.deadline())
    if isinstance(raced, measured.LostProcess):
        why = f"the faster in its own race: {raced.reason} in the race between kernels"
        return _certified(first, {"decision": why})
    won = next(won for won in ranked if won.kernel.name == raced.kernel)
    return _certified(won, raced.certificate)


def unraced(
    request: Request, kernels: Sequence[Kernel], finished: Sequence[FinishedTrial]
) -> list[Winner]:
    """Of each kernel that Ctrl-C kept from a race, the best that was found right."""
    found = []
    for kernel in kernels:
        own = [each.trial for each in finished if each.kernel == kernel.name]
        # Without an interpreter nothing says more of a prediction than that it compiles.
        checked = request.measured or languages.has_interpreter(kernel.language)
        left = measured.without_race(own, "interrupted", checked)
        if left.winner is not None:
            certificate = left.certificate if request.objective == "measured" else None
            mode, objective = request.serving_mode, request.objective
            found.append(Winner(kernel, left.winner, certificate, mode, objective))
    return found


def _certified(won: Winner, kernels: dict[str, Any]) -> Winner:
    return replace(won, certificate={**(won.certificate or {}), "kernels": kernels})
