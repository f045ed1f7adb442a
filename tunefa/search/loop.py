"""The search loop: it keeps an objective busy until the budget is used or nothing gets better."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tunefa.measure.objective import Objective
from tunefa.search.asking import Asking
from tunefa.search.share import Share
from tunefa.search.stopping import StoppingRule
from tunefa.search.strategy import Strategy
from tunefa.spec.trial import Trial


def trials(
    strategy: Strategy, evaluator: Objective, share: Share, stopping: StoppingRule
) -> Iterator[Trial]:
    """Yields trials as they finish; `stopping` counts them.

    When its time is over, or the kernel has lost, configs in progress are abandoned. But the
    default is started, and a search without a right one waits for it (`Share.patience_s`). Where
    searches take turns at the GPU, one that waits for compilers tries configs that need none, and
    may leave the GPU to others.
    """
    asking = Asking(strategy, evaluator, share, stopping, share.search_until())
    while not stopping.lost:
        asking.ask_more()
        asking.ask_compiled()
        left_s = share.left_s(stopping, asking.until)
        if not asking.in_progress or (stopping.found_any and left_s <= 0.0):
            return
        if share.gives_way(evaluator, stopping, left_s):
            stopping.gave_way = True
            return
        left_s = share.left_s(stopping, asking.until)  # to lend the GPU takes time
        if stopping.found_any and left_s <= 0.0:
            return
        trial = evaluator.next(max(0.0, left_s))  # a default that is ready is taken at any time
        if trial is None:
            return
        stopping.add(trial, counts=asking.ended(trial))
        if share.turn is None and evaluator.reserve_s > share.reserve_s:  # the machine is slow
            asking.share = share = replace(share, reserve_s=evaluator.reserve_s)
            asking.until = share.search_until()
        yield trial
