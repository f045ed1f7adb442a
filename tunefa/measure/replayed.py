"""The objective that answers from a landscape, at once: for tests and for comparing strategies.

What a search is told, and what a race says, are those of the recorded search. A config that the
landscape does not hold is refused.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from tunefa.measure.objective import Raced
from tunefa.spec.kernel import Kernel
from tunefa.spec.trial import Config, Trial, identity
from tunefa.store.landscape import Landscape
from tunefa.store.record import Record


class Replayed:
    """One kernel's part of a landscape, one config at a time."""

    width = 1
    reserve_s = 0.0

    def __init__(self, landscape: Landscape, kernel: Kernel) -> None:
        self._landscape, self._kernel = landscape, kernel.name
        self._pending: deque[Config] = deque()

    def __enter__(self) -> Replayed:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, config: Config) -> None:
        """Queues it."""
        self._pending.append(config)

    def next(self, wait_s: float = math.inf) -> Trial:
        """The recorded trial of the config that was submitted first."""
        return self._landscape.screened(self._kernel, self._pending.popleft())

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """The best of the finalists by what was recorded, races before screenings."""
        excess = self._landscape.excess(self._kernel)
        finalists = [self._landscape.raced(self._kernel, trial.config) or trial for trial in trials]
        right = [trial for trial in finalists if identity(trial.config) in excess]
        if not right:
            return Raced(finalists)
        winner = min(right, key=lambda trial: excess[identity(trial.config)])
        decision = (
            f"the best recorded of {len(right)}: replayed from {self._landscape.path.name}, "
            "nothing was measured"
        )
        others = [trial for trial in finalists if trial is not winner]
        return Raced([winner, *others], winner, {"decision": decision})


def relabelled(record: Record, landscape: Landscape) -> Record:
    """A winner's record as that of a replay, made with what the landscape was made with."""
    provenance = {**record.provenance, **landscape.provenance[record.kernel]}
    return replace(record, objective="replayed", provenance=provenance)
