"""The budget of a whole sweep: what is left of it, as its study says to every worker."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tunefa.search.budget import Budget
from tunefa.sweep.allocate import SECONDS, TRIALS, Amounts
from tunefa.sweep.slices import Slice

NOTE = "budget"
"""The name of the study's note."""


@dataclass(frozen=True)
class Clock:
    """The budget of a sweep: in seconds, of all workers at once, or in trials of all together."""

    seconds: float | None
    trials: int | None
    until: float = math.inf
    """The `time.time` at which its seconds are over. The clocks of several hosts must agree."""

    @classmethod
    def started(cls, budget: Budget, spent_s: float) -> Clock:
        """Returns the clock of a sweep that goes on since the budget's start, after `spent_s`
        seconds."""
        if budget.seconds is None:
            return cls(None, budget.trials)
        left_s = budget.seconds - budget.elapsed_s - spent_s
        return cls(budget.seconds, None, time.time() + left_s)

    @classmethod
    def of(cls, notes: Mapping[str, Any]) -> Clock:
        """Reads the study's note."""
        data = notes[NOTE]
        until = math.inf if data["until"] is None else float(data["until"])
        return cls(data["seconds"], data["trials"], until)

    def to_data(self) -> dict[str, Any]:
        """Returns the study's note."""
        until = None if math.isinf(self.until) else self.until
        return {"seconds": self.seconds, "trials": self.trials, "until": until}

    def left(self, slices: Iterable[Slice]) -> float:
        """Returns what is left: seconds from now, or trials that no slice has had."""
        if self.trials is None:
            return self.until - time.time()
        used = sum(_used(each) for each in slices)
        return max(0.0, self.trials - used)

    def spent(self, slices: Iterable[Slice]) -> float:
        """Returns what was used so far, in the same unit."""
        whole = self.seconds if self.trials is None else self.trials
        return max(0.0, float(whole or 0.0) - self.left(slices))

    def amounts(self, measured: bool) -> Amounts:
        """Returns how much a slice may have."""
        if self.trials is not None:
            return TRIALS
        return SECONDS["measured" if measured else "predicted"]

    def slice_budget(self, amount: float, earlier: int) -> Budget:
        """Returns the budget of a search that continues one of `earlier` trials."""
        if self.trials is not None:
            return Budget(trials=earlier + max(1, round(amount)))
        return Budget(seconds=amount, floor_s=0.0)


def _used(part: Slice) -> float:
    if part.is_running:
        return part.amount
    return 0.0 if part.found is None else float(part.found.get("used", part.amount))
