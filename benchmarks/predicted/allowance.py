"""Shares the time on a device among the workloads that are left."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tunefa.search.budget import Budget

LEAST_S = 5.0
"""A workload is left out if there are fewer seconds for its search."""
LEAST_TRIALS = 40
"""The least number of trials of a search: ten of each of four kernels."""
BESIDE_S = 2.0
"""Seconds that a workload takes beside its search: its tensors, checks and the race."""


@dataclass
class Allowance:
    """The budget of each search: what was asked for, or less if the time is short.

    Then all that are left share the time equally. How long trials take is known from those before.
    """

    asked: Budget
    seconds: float | None
    """The time for everything, from the start on; None means no limit."""
    start: float = field(default_factory=lambda: time.monotonic())
    took_s: float = 0.0
    """The seconds that workloads with a budget of trials have taken so far, with their races."""
    trials: int = 0
    """The trials of their budgets."""

    def next(self, count: int) -> Budget | None:
        """The budget of the next of `count` workloads; None if there is no time for it."""
        if self.seconds is None:
            return Budget(self.asked.seconds, self.asked.trials)
        left_s = self.seconds - (time.monotonic() - self.start)
        if self.asked.seconds is not None:
            found = min(self.asked.seconds, max(left_s / count - BESIDE_S, LEAST_S))
            return Budget(seconds=found) if left_s >= found + BESIDE_S else None
        trials = self.asked.trials or 0
        if not self.trials:
            return Budget(trials=trials) if left_s >= LEAST_S + BESIDE_S else None
        each_s = self.took_s / self.trials
        trials = min(trials, max(LEAST_TRIALS, int(left_s / count / each_s)))
        return Budget(trials=trials) if left_s >= trials * each_s else None

    def used(self, budget: Budget, took_s: float) -> None:
        """Counts what a workload took."""
        if budget.trials is not None:
            self.took_s, self.trials = self.took_s + took_s, self.trials + budget.trials
