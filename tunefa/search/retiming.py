"""The best configs of a search are timed again while it has the GPU and waits for a compiler.

A trial has five samples of a config's time, which may differ by a percent, and the finalists of a
race are chosen by them. Where compilers are slower than the GPU, it would do nothing meanwhile.
More samples decide who races, and nothing else: trials, journals and strategies keep the first
ones.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from tunefa.costmodel.ranking import rank_us
from tunefa.measure.measured import Measured
from tunefa.measure.objective import Objective
from tunefa.search.parts import Part
from tunefa.search.state import SearchState
from tunefa.spec.trial import Trial, identity

ENOUGH_SAMPLES = 30
"""A config with so many samples is not timed again: a race has 12 to 60 rounds."""


@dataclass
class Retiming:
    """Times the configs of one kernel again that would be finalists now."""

    objective: Measured
    state: SearchState
    part: Part
    found: dict[Hashable, Trial] = field(default_factory=dict)
    """The trials with more samples, by the config's identity."""

    def __post_init__(self) -> None:
        # Configs of an earlier search were raced, perhaps on another device of the same name.
        self._left_out = {identity(each.config) for each in self.part.earlier}

    def again(self, left_s: float) -> bool:
        """Times the one with the fewest samples, if the search has `left_s` seconds. Returns False
        where all have enough, or where the process of the device was lost."""
        trial = self._next()
        if trial is None:
            return False
        key, found = identity(trial.config), self.objective.retime(trial, left_s)
        if found is None:
            self._left_out.add(key)
            return False
        self.found[key] = found
        return True

    def _next(self) -> Trial | None:
        """The config to time, with its samples so far; None where all have enough."""
        finalists = ranked(self.state.trials_of(self.part.name), self.found)
        few = []
        for each in finalists[: self.state.request.finalists]:
            known = self.found.get(key := identity(each.config), each)
            if key not in self._left_out and 0 < len(known.samples_us) < ENOUGH_SAMPLES:
                few.append(known)
        return min(few, key=lambda each: len(each.samples_us), default=None)


def ranked(trials: Iterable[Trial], found: Mapping[Hashable, Trial]) -> list[Trial]:
    """Returns the right ones of these trials, the fastest first, by all samples. `found` has more
    of some configs, see `Retiming.found`."""
    return sorted(
        (each for each in trials if each.outcome == "ok"),
        key=lambda each: rank_us(found.get(identity(each.config), each)),
    )


def of(state: SearchState, part: Part, objective: Objective) -> Retiming | None:
    """Returns what times a kernel's best configs again; None where nothing is measured, or where no
    other search waits for the GPU and prepares configs meanwhile."""
    if state.turn is None or not isinstance(objective, Measured):
        return None
    return Retiming(objective, state, part)
