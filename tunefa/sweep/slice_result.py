"""The findings of a slice, as plain data for the study."""

from __future__ import annotations

from typing import Any

from tunefa.costmodel.ranking import rank_us
from tunefa.search import candidates
from tunefa.search.request import Result
from tunefa.spec.trial import identity, time_us
from tunefa.store import document

ENDED_EARLY = 0.8
"""A search that used less of its budget than this has decided that nothing better is left."""


def told(result: Result, earlier: int, amount: float, at: float) -> dict[str, Any]:
    """Returns what the study is told of a result, which continued `earlier` trials.

    `amount` is the part of the budget that it had, `at` what the whole sweep had used at its end.
    """
    used = float(len(result.finished) - earlier)
    if result.request.budget.seconds is not None:
        used = result.elapsed_s
        amount = min(amount, result.request.budget.seconds)
    early = used < ENDED_EARLY * amount or len(result.finished) == earlier
    cut_short = result.interrupted or result.gave_way
    record = result.record
    made: dict[str, Any] = {
        "used": used,
        "at": at,
        "trials": len(result.finished),
        "journal": str(result.journal),
        "best_us": None,
        "default_us": default_us(result),
        "hoped": max(result.hoped.values(), default=None),
        "settled": not cut_short and (early or is_settled(result)),
    }
    if record is not None:
        made |= {
            "best_us": record.median_us,
            "kernel": record.kernel,
            "config": dict(record.config),
            "record": document.to_text([record]),
        }
    return made


def default_us(result: Result) -> float | None:
    """Returns the time in us of the default that would run without the search: the fastest one of a
    kernel.

    It is None if none was right, and while the default of the record's own kernel was not tried:
    that may be the fastest one.
    """
    request, record = result.request, result.record
    defaults = set()
    for kernel in request.kernels:
        config = candidates.default(request.case(kernel))
        if config is not None:
            defaults.add((kernel.name, identity(config)))
    tried = {(each.kernel, identity(each.trial.config)): each.trial for each in result.finished}
    unknown = defaults - tried.keys()
    if record is not None and any(kernel == record.kernel for kernel, _ in unknown):
        return None
    right = [tried[each] for each in defaults & tried.keys() if tried[each].outcome == "ok"]
    fastest = min(right, key=rank_us, default=None)
    return None if fastest is None else time_us(fastest)


def is_settled(result: Result) -> bool:
    """Whether nothing is left to try: of each kernel all was tried, or settled without trying, or
    it is too slow to win."""
    tried: dict[str, int] = {}
    for each in result.finished:
        tried[each.kernel] = tried.get(each.kernel, 0) + 1
    return all(
        name in result.settled
        or name in result.left_early
        or tried.get(name, 0) >= len(feasible.configs)
        for name, feasible in result.feasible.items()
    )
