"""The search loop: keeps an objective busy until the budget is used or nothing gets better."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tunefa.measure.objective import Objective
from tunefa.search.budget import Budget
from tunefa.search.strategy import Strategy
from tunefa.spec.trial import Trial, time_us
from tunefa.store.record import ObjectiveKind

_PLATEAU_TRIALS = 60
"""A search by seconds ends early after so many trials (and a third of all) without a 0.5 % gain."""
_MODELLED_PLATEAU_TRIALS = 200
"""The same where a law says the time and a compiler only whether a config fits: it takes a third of
a second, and what is just too large leads nowhere near as smoothly as times do."""
_GAIN = 0.995
BEHIND = 0.15
"""A kernel whose best is so much slower than another's winner does not catch up any more: after a
fair look the best was 6 % from that of the whole space at most (docs/search.md). The rest is for
what screenings and the other's race differ by."""


@dataclass
class StoppingRule:
    """Tells when more trials of a kernel are not worth their time: no gain, or no chance."""

    to_beat_us: float = math.inf
    """The best of the kernels that were searched before."""
    fair_trials: float = math.inf
    """Right trials that make a fair look at the kernel, see `strategies.fair_trials`."""
    patience: int = _PLATEAU_TRIALS
    """Trials without a gain that end a search, see `patience`."""
    best_us: float = math.inf
    since_best: int = 0
    """Trials since the last gain."""
    done: int = 0
    right: int = 0

    def resumed(self, earlier: Sequence[Trial]) -> StoppingRule:
        """Of a search that goes on after these trials: what they found is no gain any more."""
        right = [trial for trial in earlier if trial.outcome == "ok"]
        best_us = min(map(time_us, right), default=math.inf)
        return replace(self, best_us=best_us, done=len(earlier), right=len(right))

    def add(self, trial: Trial) -> None:
        """Counts a trial."""
        self.done, self.since_best = self.done + 1, self.since_best + 1
        self.right += trial.outcome == "ok"
        if trial.outcome == "ok" and time_us(trial) < self.best_us * _GAIN:
            self.best_us, self.since_best = time_us(trial), 0

    @property
    def found_any(self) -> bool:
        """Whether anything right was found."""
        return math.isfinite(self.best_us)

    @property
    def on_plateau(self) -> bool:
        """Whether nothing has got better for long."""
        return self.since_best > max(self.patience, self.done // 3)

    @property
    def slower_by(self) -> float:
        """How much slower its best is than what it has to beat, relative to that."""
        return self.best_us / self.to_beat_us - 1.0

    @property
    def behind(self) -> bool:
        """Whether it is too slow by now."""
        return self.slower_by > BEHIND

    @property
    def lost(self) -> bool:
        """Whether it was after a fair look."""
        return self.behind and self.right >= self.fair_trials


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
        left = self.budget.trials_left(self.fraction, self.started)
        return left is not None and submitted >= left


def patience(objective: ObjectiveKind) -> int:
    """Trials without a gain after which a search by seconds ends."""
    return _MODELLED_PLATEAU_TRIALS if objective == "modelled" else _PLATEAU_TRIALS


def trials(
    strategy: Strategy, evaluator: Objective, share: Share, stopping: StoppingRule
) -> Iterator[Trial]:
    """Trials as they finish; `stopping` counts them.

    At the end of its time, or once the kernel has lost, what is under way is abandoned. Only a
    search that has found nothing right by then waits for what it has started, one config at least:
    the first is the one most likely to be right.
    """
    until = share.search_until()
    by_time = share.budget.seconds is not None
    underway, submitted, exhausted = 0, 0, False
    while not stopping.lost:
        while not exhausted and underway < evaluator.width:
            if by_time:
                may_end = submitted or stopping.found_any
                exhausted = stopping.on_plateau or (bool(may_end) and time.monotonic() >= until)
            else:
                exhausted = share.is_used(submitted)
            config = None if exhausted else strategy.ask()
            if config is None:
                exhausted = True
                break
            evaluator.submit(config)
            underway, submitted = underway + 1, submitted + 1
        left_s = until - time.monotonic() if stopping.found_any else math.inf
        if underway == 0 or left_s <= 0.0:
            return
        trial = evaluator.next(left_s)
        if trial is None:
            return
        underway -= 1
        stopping.add(trial)
        yield trial
