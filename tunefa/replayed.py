"""The objective that answers from a landscape, at once: for tests and for comparing strategies.

What a search is told, and what a race says, are those of the recorded search. A config that the
landscape does not hold is refused.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType

from tunefa.evaluate import Raced
from tunefa.kernel import Kernel
from tunefa.landscape import Landscape
from tunefa.record import Record
from tunefa.trial import Config, Trial


class Replayed:
    """One kernel's part of a landscape, one config at a time."""

    width = 1

    def __init__(self, landscape: Landscape, kernel: Kernel) -> None:
        self._landscape, self._kernel = landscape, kernel.name
        self._pending: deque[Config] = deque()

    def __enter__(self) -> Replayed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def submit(self, config: Config) -> None:
        """Queues it."""
        self._pending.append(config)

    def next(self) -> Trial:
        """The recorded trial of the config that was submitted first."""
        return self._landscape.screened(self._kernel, self._pending.popleft())

    def race(self, trials: Iterable[Trial], default: Config | None) -> Raced:
        """The best by the recorded race; one that did not race there comes after all that did."""
        finalists = [(self._landscape.raced(self._kernel, trial.config), trial) for trial in trials]
        ranked = sorted(
            (raced is None, (raced or trial).median_us or math.inf, place)
            for place, (raced, trial) in enumerate(finalists)
            if (raced or trial).outcome == "ok"
        )
        known = [raced or trial for raced, trial in finalists]
        if not ranked:
            return Raced(known)
        winner = known[ranked[0][2]]
        decision = (
            f"the best recorded of {len(ranked)}: replayed from {self._landscape.path.name}, "
            "nothing was measured"
        )
        others = [trial for trial in known if trial is not winner]
        return Raced([winner, *others], winner, {"decision": decision})


def relabelled(record: Record, landscape: Landscape) -> Record:
    """A winner's record as that of a replay, made with what the landscape was made with."""
    provenance = {**record.provenance, **landscape.provenance[record.kernel]}
    return replace(record, objective="replayed", provenance=provenance)
