"""The rule that says when the search of a kernel ends: nothing gets better, or it cannot win."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from tunefa.costmodel.ranking import rank_us
from tunefa.spec.trial import Trial
from tunefa.store.record import ObjectiveKind

_PLATEAU_TRIALS = 60
"""A search with a budget of seconds ends early after so many trials without a gain of 0.5 %, if
they are also a third of all trials."""
_MODELLED_PLATEAU_TRIALS = 200
"""The same number where a latency model says the time and the compiler only whether a config fits.
A trial takes a third of a second then, and whether configs fit is harder to predict than times."""
_GAIN = 0.995
"""A trial is a gain if its time is less than the best time multiplied by this."""
_CACHED_S = 0.1
"""A config that took less was compiled before."""
BEHIND = 0.15
"""A kernel is given up if its best is so much slower, relatively, than another kernel's winner.
After a fair look, the best was at most 6 % slower than the best of the whole space
(docs/search.md). The rest allows for the difference between a screening and the other kernel's
race."""


@dataclass
class StoppingRule:
    """Says when to stop the search of a kernel: if nothing gets better, or it cannot win."""

    to_beat_us: float = math.inf
    """The best time of the kernels that were searched before."""
    fair_trials: float = math.inf
    """The right trials that show how fast the kernel can be, see `strategies.fair_trials`."""
    patience: int = _PLATEAU_TRIALS
    """The number of trials without a gain after which a search ends, see `patience`."""
    best_us: float = math.inf
    since_best: int = 0
    """Trials since the last gain."""
    done: int = 0
    """Trials so far."""
    right: int = 0
    """Trials so far with the outcome `ok`."""
    none_left: bool = False
    """Whether the search ended because its strategy had nothing more to try."""
    gave_way: bool = False
    """Whether the search ended while compilers worked for it: another one was ready for the GPU, or
    it had too little time left to lend it."""
    programs: set[Hashable] = field(default_factory=set)
    """The programs that were tried, with their times; see `add`."""
    compiled_s: list[float] = field(default_factory=list)
    """The seconds for which the compiler worked for each trial; none of those from a cache."""

    def resumed(self, earlier: Sequence[Trial]) -> StoppingRule:
        """The rule for a search that continues after these trials; their best is no new gain. All
        count, also those that did not when they were made: a journal does not tell them apart."""
        rule = replace(self, programs=set(self.programs), compiled_s=list(self.compiled_s))
        for trial in earlier:
            rule.add(trial)
        right = [trial for trial in earlier if trial.outcome == "ok"]
        return replace(rule, best_us=min(map(rank_us, right), default=math.inf), since_best=0)

    def add(self, trial: Trial, counts: bool = True) -> None:
        """Counts a trial, unless an earlier one was the same program and took the same time: that
        one has said all. One that does not count says nothing of others, but may be the best."""
        if (trial.compile_s or 0.0) > _CACHED_S:
            self.compiled_s.append(trial.compile_s or 0.0)
        if trial.outcome == "ok" and trial.resources is not None and trial.resources.code:
            told = trial.resources.code, rank_us(trial)
            if told in self.programs:
                return
            self.programs.add(told)
        if counts:
            self.done, self.since_best = self.done + 1, self.since_best + 1
            self.right += trial.outcome == "ok"
        if trial.outcome == "ok" and rank_us(trial) < self.best_us * _GAIN:
            self.best_us, self.since_best = rank_us(trial), 0

    @property
    def found_any(self) -> bool:
        """Whether anything right was found."""
        return math.isfinite(self.best_us)

    @property
    def compile_s(self) -> float:
        """The seconds that a compiler needs; 0 while that is not known."""
        return statistics.median(self.compiled_s) if self.compiled_s else 0.0

    @property
    def on_plateau(self) -> bool:
        """Whether there was no gain for a long time."""
        return self.since_best > max(self.patience, self.done // 3)

    @property
    def slower_by(self) -> float:
        """The excess of the best time over the time to beat, relative to the time to beat."""
        return self.best_us / self.to_beat_us - 1.0

    @property
    def behind(self) -> bool:
        """Whether the best so far is too slow to win."""
        return self.slower_by > BEHIND

    @property
    def lost(self) -> bool:
        """Whether the best is too slow to win, after enough right trials to be sure."""
        return self.behind and self.right >= self.fair_trials


def patience(objective: ObjectiveKind) -> int:
    """The number of trials without a gain after which a search with a budget of seconds ends."""
    return _MODELLED_PLATEAU_TRIALS if objective == "modelled" else _PLATEAU_TRIALS
