"""A search asks its strategy for configs, so that compilers and the GPU have enough of them."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from tunefa.compile.pool import Rank
from tunefa.measure.objective import Objective
from tunefa.search.lending import LENDS_S
from tunefa.search.share import Share
from tunefa.search.stopping import StoppingRule
from tunefa.search.strategy import Strategy
from tunefa.spec.trial import Config, Trial, identity

_ASKED_AT_ONCE = 2
"""The configs that a search with the GPU asks for before its next trial, where one is compiled.
With two of them, those in progress still become more."""
_ON_TOP = 8
"""The configs that need no compiler and are in progress on top of the others, while the GPU would
wait for a compiler."""


@dataclass
class Asking:
    """Asks a strategy for configs, and counts those in progress."""

    strategy: Strategy
    evaluator: Objective
    share: Share
    stopping: StoppingRule
    until: float
    """The `time.monotonic` at which the time of the search is over."""
    in_progress: int = 0
    """The configs in progress, with those of `on_top`."""
    submitted: int = 0
    exhausted: bool = False
    """Whether it asks no more."""
    on_top: set[Hashable] = field(default_factory=set)
    """The configs in progress that are tried only because they need no compiler."""

    def ask_more(self) -> None:
        """Asks for as many configs as should be in progress, but for few while the GPU waits."""
        share, stopping, asked, since = self.share, self.stopping, 0, time.monotonic()
        while not self.exhausted and self._compiling < share.width(self.evaluator, stopping):
            is_late = self.in_progress and share.is_too_late(stopping, self.until)
            if is_late or (asked >= _ASKED_AT_ONCE and share.waits(self.evaluator, since)):
                return
            self.exhausted = self._is_exhausted()
            config = None if self.exhausted else self.strategy.ask()
            stopping.none_left = config is None and not self.exhausted and not self.in_progress
            if config is None:
                return  # if nothing is left, it is asked again when it knows another trial
            self._submit(config)
            asked += 1

    def ask_compiled(self) -> None:
        """Asks for a few configs more that need no compiler, if the GPU would wait for one."""
        if self.share.turn is None or not self.stopping.found_any:
            return
        while len(self.on_top) < _ON_TOP and not self.evaluator.is_ready(0.0):
            if self.exhausted or self._is_exhausted() or self.until - time.monotonic() < LENDS_S:
                return
            if (config := self.strategy.ask(compiled=True)) is None:
                return
            self.on_top.add(identity(config))
            self._submit(config, Rank.COMPILED)

    def ended(self, trial: Trial) -> bool:
        """Counts a config that is in progress no more. Returns whether it was expected to gain as
        much as any, and not only tried because it needs no compiler."""
        self.in_progress -= 1
        was_on_top = identity(trial.config) in self.on_top
        self.on_top.discard(identity(trial.config))
        return not was_on_top

    @property
    def _compiling(self) -> int:
        """The configs in progress that compilers may work for."""
        return self.in_progress - len(self.on_top)

    def _is_exhausted(self) -> bool:
        if self.share.budget.seconds is None:
            return self.share.is_used(self.submitted)
        may_end = bool(self.submitted) or self.stopping.found_any
        return self.stopping.on_plateau or (may_end and time.monotonic() >= self.until)

    def _submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        self.evaluator.submit(config, rank)
        self.in_progress, self.submitted = self.in_progress + 1, self.submitted + 1
