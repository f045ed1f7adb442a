"""The best configs of a search are timed again while it has the GPU and waits for a compiler.

A trial has five samples of a config's time, which may differ by a percent, and the finalists of a
race are chosen by them. Where compilers are slower than the GPU, it would do nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tunefa.costmodel.ranking import rank_us
from tunefa.measure.measured import Measured
from tunefa.measure.objective import Objective
from tunefa.search.parts import Part
from tunefa.search.state import SearchState
from tunefa.spec.trial import Trial

ENOUGH_SAMPLES = 30
"""A config with so many samples is not timed again: a race has 12 to 60 rounds."""


@dataclass(frozen=True)
class Retiming:
    """Times the configs of one kernel again that would be finalists now."""

    objective: Measured
    state: SearchState
    kernel: str

    def again(self) -> bool:
        """Times the one with the fewest samples, and keeps its trial. Returns False where all have
        enough, or where the process of the device was lost."""
        trial = self._next()
        found = None if trial is None else self.objective.retime(trial)
        if found is None:
            return False
        self.state.keep(self.kernel, found)
        return True

    def _next(self) -> Trial | None:
        own = self.state.trials_of(self.kernel)
        right = sorted((each for each in own if each.outcome == "ok"), key=rank_us)
        finalists = right[: self.state.request.finalists]
        few = [each for each in finalists if 0 < len(each.samples_us) < ENOUGH_SAMPLES]
        return min(few, key=lambda each: len(each.samples_us), default=None)


def of(state: SearchState, part: Part, objective: Objective) -> Callable[[], bool] | None:
    """Returns what times a kernel's best configs again; None where nothing is measured, or where no
    other search waits for the GPU and prepares configs meanwhile."""
    if state.turn is None or not isinstance(objective, Measured):
        return None
    return Retiming(objective, state, part.name).again
