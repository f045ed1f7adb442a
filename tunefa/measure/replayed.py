"""The objective that answers from a landscape: for tests, and to compare search strategies.

A landscape is the journal of a search that tried every config of a kernel's space on a device. A
search that replays it gets the times that were recorded, without a device. A config that the
landscape does not hold is refused.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from tunefa.compile.pool import Rank
from tunefa.compile.workers import Workers
from tunefa.measure.objective import Raced
from tunefa.spec.kernel import Kernel
from tunefa.spec.trial import Config, Trial, identity
from tunefa.store.landscape import Landscape
from tunefa.store.record import Record


class Replayed:
    """Answers for the configs of one kernel of a landscape, one at a time."""

    width = 1
    reserve_s = 0.0

    def __init__(self, landscape: Landscape, kernel: Kernel) -> None:
        self._landscape, self._kernel = landscape, kernel.name
        self._pending: deque[Config] = deque()

    def __enter__(self) -> Replayed:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def prepare(self, config: Config, compilers: Workers) -> None:
        """Does nothing: the answer is recorded."""

    def is_prepared(self, config: Config) -> bool:
        """Returns True: the answer is recorded."""
        return True

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        """Queues a config."""
        self._pending.append(config)

    def next(self, wait_s: float = math.inf) -> Trial:
        """The recorded trial of the config that was submitted first."""
        return self._landscape.screened(self._kernel, self._pending.popleft())

    def is_ready(self, wait_s: float) -> bool:
        """Returns True: the answer is recorded."""
        return True

    def settle(self) -> Trial | None:
        """Returns None: nothing runs ahead."""
        return None

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """The best finalist by the recorded times; a race's time counts before a screening's."""
        excess = self._landscape.excess(self._kernel)
        finalists = [self._landscape.raced(self._kernel, trial.config) or trial for trial in trials]
        right = [trial for trial in finalists if identity(trial.config) in excess]
        if not right:
            return Raced(finalists)
        winner = min(right, key=lambda trial: excess[identity(trial.config)])
        decision = (
            f"the best recorded of {len(right)}, replayed from {self._landscape.path.name}; "
            "nothing was measured"
        )
        others = [trial for trial in finalists if trial is not winner]
        return Raced([winner, *others], winner, {"decision": decision})


def relabelled(record: Record, landscape: Landscape) -> Record:
    """The record of a replay's winner, with the versions that the landscape was recorded with."""
    provenance = {**record.provenance, **landscape.provenance[record.kernel]}
    return replace(record, objective="replayed", provenance=provenance)
