"""The search loop: keeps an objective busy until the budget is used or nothing gets better."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tunefa.budget import Budget
from tunefa.evaluate import Objective
from tunefa.strategies import Strategy
from tunefa.trial import Trial, time_us

_PLATEAU_TRIALS = 60
"""A search by seconds ends early after so many trials (and a third of all) without a 0.5 % gain."""
_GAIN = 0.995


@dataclass
class Plateau:
    """Tells when a search has stopped to get better."""

    best_us: float = math.inf
    since_best: int = 0
    """Trials since the last gain."""
    done: int = 0

    @classmethod
    def after(cls, earlier: Sequence[Trial]) -> Plateau:
        """Of a search that goes on after these trials: what they found is no gain any more."""
        times = [t.median_us for t in earlier if t.outcome == "ok" and t.median_us is not None]
        return cls(best_us=min(times, default=math.inf), done=len(earlier))

    def add(self, trial: Trial) -> None:
        """Counts a trial."""
        self.done, self.since_best = self.done + 1, self.since_best + 1
        if trial.outcome == "ok" and time_us(trial) < self.best_us * _GAIN:
            self.best_us, self.since_best = time_us(trial), 0

    @property
    def found_any(self) -> bool:
        """Whether anything right was found."""
        return math.isfinite(self.best_us)

    @property
    def reached(self) -> bool:
        """Whether more trials are not worth their time."""
        return self.since_best > max(_PLATEAU_TRIALS, self.done // 3)


@dataclass(frozen=True)
class Share:
    """What one kernel may use of a budget."""

    budget: Budget
    fraction: float
    """Of the whole budget: how much is used when this kernel is done, 0 to 1."""
    started: int
    """Trials that count already, by other kernels and by an earlier search."""
    reserve_s: float
    """Seconds to leave for the race."""

    @property
    def deadline(self) -> float:
        """The `time.monotonic` at which the race is over; infinite for a budget of trials."""
        return self.budget.deadline(self.fraction)

    def search_until(self) -> float:
        """When the race begins: the reserve before the deadline, but half of what is left."""
        left_s = self.deadline - time.monotonic()
        return self.deadline - min(self.reserve_s, max(0.0, left_s) / 2)

    def is_used(self, submitted: int) -> bool:
        """Whether a budget of trials is, by those submitted."""
        return self.budget.fraction(0.0, self.started + submitted) >= self.fraction


def trials(
    strategy: Strategy, evaluator: Objective, share: Share, earlier: Sequence[Trial] = ()
) -> Iterator[Trial]:
    """Trials as they finish. At the end of its time what is under way is abandoned.

    Only a search that has found nothing right by then waits for what it has started, one config at
    least: the first is the one most likely to be right.
    """
    until, plateau = share.search_until(), Plateau.after(earlier)
    by_time = share.budget.seconds is not None
    underway, submitted, exhausted = 0, 0, False
    while True:
        while not exhausted and underway < evaluator.width:
            if by_time:
                may_end = submitted or plateau.found_any
                exhausted = plateau.reached or (bool(may_end) and time.monotonic() >= until)
            else:
                exhausted = share.is_used(submitted)
            config = None if exhausted else strategy.ask()
            if config is None:
                exhausted = True
                break
            evaluator.submit(config)
            underway, submitted = underway + 1, submitted + 1
        left_s = until - time.monotonic() if plateau.found_any else math.inf
        if underway == 0 or left_s <= 0.0:
            return
        trial = evaluator.next(left_s)
        if trial is None:
            return
        underway -= 1
        plateau.add(trial)
        yield trial
