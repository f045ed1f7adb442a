"""A slice of a sweep: the search of one workload by one worker, for a part of the budget."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial

from tunefa.sweep.host_process import HostProcess

BEAT_S = 5.0
"""The seconds between two signs of life of a worker."""
LOST_S = 30.0
"""A worker of another host that gives no sign of life for so long is taken to be lost."""
GONE_S = 1.0
"""A worker waits so long before it counts the end of another one as a failure: the workers of a
sweep that is killed do not end all at once."""


@dataclass(frozen=True)
class Slice:
    """One slice, as the study knows it."""

    id: int
    number: int
    is_running: bool
    key: str
    """The item, see `Item.key`."""
    amount: float
    """Its part of the budget, in seconds or in trials."""
    worker: HostProcess
    began: float
    """The `time.time` of its host."""
    beat: Mapping[str, Any]
    """The last sign of life, and how far it is."""
    found: Mapping[str, Any] | None
    """The findings; None while it runs and if its worker was lost."""
    lost: str
    """The reason that it has found nothing."""
    counts: bool
    """Whether that says something about its workload: not if the whole sweep was ended."""

    @classmethod
    def of(cls, trial: FrozenTrial) -> Slice:
        """Reads a trial of the study."""
        attrs = trial.user_attrs
        return cls(
            id=trial._trial_id,
            number=trial.number,
            is_running=not trial.state.is_finished(),
            key=str(attrs.get("item", "")),
            amount=float(attrs.get("amount", 0.0)),
            worker=HostProcess.from_data(attrs.get("worker", {})),
            began=float(attrs.get("began", 0.0)),
            beat=attrs.get("beat", {}),
            found=attrs.get("found"),
            lost=str(attrs.get("lost", "")),
            counts=bool(attrs.get("counts", True)),
        )

    @property
    def took_s(self) -> float:
        """The seconds that it took; 0 where it did not come to its end."""
        return 0.0 if self.found is None else max(0.0, self.found["ended"] - self.began)


@dataclass
class Watch:
    """Notices which running slices have lost their workers."""

    gone_s: float = 0.0
    """For so long a process of this host must have ended."""
    _seen: dict[int, tuple[Any, float]] = field(default_factory=dict)
    """By slice: its last sign of life, and the `time.monotonic` at which it was seen first."""

    def lost(self, slices: Iterable[Slice]) -> list[Slice]:
        """Returns the slices whose process has ended, or has been silent for LOST_S.

        Clocks of two hosts may differ, so only the time between two looks from here counts.
        """
        return [each for each in slices if each.is_running and self._is_lost(each)]

    def _is_lost(self, each: Slice) -> bool:
        if not each.worker.is_here:
            return self._unchanged_s(each.number, each.beat.get("at")) > LOST_S
        has_ended = each.worker.has_ended
        return has_ended and self._unchanged_s(each.number, "ended") >= self.gone_s

    def _unchanged_s(self, number: int, sign: Any) -> float:
        """For how many seconds this has been the last sign of life of a slice."""
        now, before = time.monotonic(), self._seen.get(number)
        if before is None or before[0] != sign:
            self._seen[number] = sign, now
            return 0.0
        return now - before[1]
