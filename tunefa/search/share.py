"""The share of a search's budget that one kernel may use."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from tunefa.measure.objective import Objective
from tunefa.search.budget import FLOOR_S, Budget
from tunefa.search.gpu_turns import Turn
from tunefa.search.lending import CompilerWait, Meanwhile
from tunefa.search.stopping import StoppingRule

_LAST_S = 0.1
"""A search that shares its GPU is over so long before its race must begin."""
_ASKING_S = 0.005
"""It asks for more for so long: those that it had prepared take no time, and the sooner it comes to
others, the sooner these are compiled. A surrogate takes as long for one or two."""
_MOST_RACED = 0.9
"""The part of a turn's time that its race may have: other searches need the GPU after it."""
_SMALL_S = 3 * FLOOR_S
"""A search with less time compiles the default alone until something is right."""


@dataclass(frozen=True)
class Share:
    """The share of a budget that one kernel may use."""

    budget: Budget
    fraction: float
    """The fraction of the whole budget that is used when this kernel is done, 0 to 1."""
    started: int
    """Trials of other kernels and of an earlier search, which count as well."""
    reserve_s: float
    """Seconds to leave for the race."""
    least: int = 1
    """The number of trials that a budget of trials allows at least: the default's."""
    turn: Turn | None = None
    """Its turn at the GPU, where other searches wait for theirs."""
    meanwhile: Meanwhile | None = None
    """Its use of the GPU while it waits for a compiler; None if it has none."""

    @property
    def deadline(self) -> float:
        """The `time.monotonic` at which the race is over; infinite for a budget of trials."""
        return self.budget.deadline(self.fraction)

    def search_until(self) -> float:
        """The `time.monotonic` at which the race begins: the reserve before the deadline, but at
        the earliest when half of the time that is left now is over; a tenth, where searches share a
        GPU."""
        left_s = self.deadline - time.monotonic()
        most = 0.5 if self.turn is None else _MOST_RACED
        return self.deadline - min(self.reserve_s, most * max(0.0, left_s))

    @property
    def is_over(self) -> bool:
        """Whether what is left is for the race, where searches share a GPU."""
        end = self.deadline - self.reserve_s - _LAST_S
        return self.turn is not None and time.monotonic() >= end

    def is_used(self, submitted: int) -> bool:
        """Whether a budget of trials is used once so many are submitted."""
        left = self.budget.trials_left(self.fraction, self.started)
        return left is not None and submitted >= max(left, self.least)

    def width(self, evaluator: Objective, stopping: StoppingRule) -> int:
        """The number of configs that should be in progress. In a small budget it is one until one
        is right: others would only take the cores from the default."""
        seconds = self.budget.seconds
        small = seconds is not None and seconds < _SMALL_S
        return 1 if small and not stopping.found_any else evaluator.width

    def patience_s(self, stopping: StoppingRule) -> float:
        """The seconds that a kernel which has nothing right waits for a trial in progress.

        It waits for the patience of the budget; without a limit if no other kernel has anything
        right either.
        """
        if math.isinf(stopping.to_beat_us):
            return math.inf
        return self.budget.patience(self.fraction) - time.monotonic()

    def left_s(self, stopping: StoppingRule, until: float) -> float:
        """The seconds for which a search waits for a trial, if its time is over at `until`."""
        return until - time.monotonic() if stopping.found_any else self.patience_s(stopping)

    def waits(self, evaluator: Objective, since: float) -> bool:
        """Whether the GPU waits for a config that is compiled, and the strategy was asked for long
        enough `since` that `time.monotonic`."""
        asked_s = time.monotonic() - since
        return self.turn is not None and asked_s > _ASKING_S and evaluator.is_ready(0.0)

    def is_too_late(self, stopping: StoppingRule, until: float) -> bool:
        """Whether a config that is asked for now will not be compiled `until` that
        `time.monotonic`. Compilers may then work for other searches."""
        if self.turn is None or not stopping.found_any:
            return False
        return time.monotonic() + stopping.compile_s > until

    def gives_way(self, evaluator: Objective, stopping: StoppingRule, left_s: float) -> bool:
        """Waits up to `left_s` seconds for a compiled config. Returns whether the GPU has better
        to do, and something right was found for this workload: another search is ready for it, or
        this kernel has too little time left to lend it."""
        right = stopping.found_any or math.isfinite(stopping.to_beat_us)
        if self.turn is None or not right:
            return False
        wait = CompilerWait(evaluator, self.turn, self.meanwhile)
        return wait.gives_way(left_s, stopping.found_any)
