"""The search loop: it keeps an objective busy until the budget is used or nothing gets better."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tunefa.costmodel.ranking import rank_us
from tunefa.measure.objective import Objective
from tunefa.search.budget import FLOOR_S, Budget
from tunefa.search.gpu_turns import Turn
from tunefa.search.lending import CompilerWait, Meanwhile
from tunefa.search.strategy import Strategy
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
_LAST_S = 0.1
"""A search that shares its GPU is over so long before its race must begin."""
_ASKED_AT_ONCE = 2
"""The configs that a search with the GPU asks for before its next trial, where one is compiled.
With two of them, those in progress still become more."""
_ASKING_S = 0.005
"""It asks for more for so long: those that it had prepared take no time, and the sooner it comes to
others, the sooner these are compiled. A surrogate takes as long for one or two."""
_MOST_RACED = 0.9
"""The part of a turn's time that its race may have: other searches need the GPU after it."""
_CACHED_S = 0.1
"""A config that took less was compiled before."""
_SMALL_S = 3 * FLOOR_S
"""A search with less time compiles the default alone until something is right."""
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
        """The rule for a search that continues after these trials; their best is no new gain."""
        rule = replace(self, programs=set(self.programs), compiled_s=list(self.compiled_s))
        for trial in earlier:
            rule.add(trial)
        right = [trial for trial in earlier if trial.outcome == "ok"]
        return replace(rule, best_us=min(map(rank_us, right), default=math.inf), since_best=0)

    def add(self, trial: Trial) -> None:
        """Counts a trial, unless an earlier one was the same program and took the same time: that
        one has said all."""
        if (trial.compile_s or 0.0) > _CACHED_S:
            self.compiled_s.append(trial.compile_s or 0.0)
        if trial.outcome == "ok" and trial.resources is not None and trial.resources.code:
            told = trial.resources.code, rank_us(trial)
            if told in self.programs:
                return
            self.programs.add(told)
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
        """How much slower the best is than the time to beat, relative to that time."""
        return self.best_us / self.to_beat_us - 1.0

    @property
    def behind(self) -> bool:
        """Whether the best so far is too slow to win."""
        return self.slower_by > BEHIND

    @property
    def lost(self) -> bool:
        """Whether the best is too slow to win, after enough right trials to be sure."""
        return self.behind and self.right >= self.fair_trials


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
    """What it does with the GPU while it waits for a compiler."""

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
        """How many configs should be in progress. In a small budget it is one until one is right:
        others would only take the cores from the default."""
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


def patience(objective: ObjectiveKind) -> int:
    """The number of trials without a gain after which a search with a budget of seconds ends."""
    return _MODELLED_PLATEAU_TRIALS if objective == "modelled" else _PLATEAU_TRIALS


def trials(
    strategy: Strategy, evaluator: Objective, share: Share, stopping: StoppingRule
) -> Iterator[Trial]:
    """Yields trials as they finish; `stopping` counts them.

    When its time is over, or the kernel has lost, configs in progress are abandoned. But the
    default is started, and a search without a right one waits for it (`Share.patience_s`). Where
    searches take turns at the GPU, one that waits for compilers may leave it to others.
    """
    until, by_time = share.search_until(), share.budget.seconds is not None
    in_progress, submitted, exhausted = 0, 0, False
    while not stopping.lost:
        asked, since = 0, time.monotonic()
        while not exhausted and in_progress < share.width(evaluator, stopping):
            is_late = in_progress and share.is_too_late(stopping, until)
            if is_late or (asked >= _ASKED_AT_ONCE and share.waits(evaluator, since)):
                break
            if by_time:
                may_end = submitted or stopping.found_any
                exhausted = stopping.on_plateau or (bool(may_end) and time.monotonic() >= until)
            else:
                exhausted = share.is_used(submitted)
            config = None if exhausted else strategy.ask()
            stopping.none_left = config is None and not exhausted and not in_progress
            if config is None:
                break  # if nothing is left, it is asked again when it knows another trial
            evaluator.submit(config)
            in_progress, submitted, asked = in_progress + 1, submitted + 1, asked + 1
        left_s = share.left_s(stopping, until)
        if not in_progress or (stopping.found_any and left_s <= 0.0):
            return
        if share.gives_way(evaluator, stopping, left_s):
            stopping.gave_way = True
            return
        left_s = share.left_s(stopping, until)  # to lend the GPU takes time
        if stopping.found_any and left_s <= 0.0:
            return
        trial = evaluator.next(max(0.0, left_s))  # a default that is ready is taken at any time
        if trial is None:
            return
        in_progress -= 1
        stopping.add(trial)
        if share.turn is None and evaluator.reserve_s > share.reserve_s:  # the machine is slow
            share = replace(share, reserve_s=evaluator.reserve_s)
            until = share.search_until()
        yield trial
