"""The trials of a search, and what there is to say of them at any moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from tunefa import strategies
from tunefa.trial import Trial, time_us


@dataclass(frozen=True)
class Finished:
    """A trial and the kernel it belongs to."""

    kernel: str
    trial: Trial


@dataclass(kw_only=True)
class Tally:
    """Trials by kernel and config; counted as they come, for a search may have thousands."""

    finished: dict[tuple[str, tuple[object, ...]], Finished] = field(default_factory=dict)
    failed: int = 0
    best: Trial | None = None
    """The one that is right and takes the least time."""

    def take(self, kernel: str, trial: Trial) -> None:
        """Counts a trial; a later one of a config replaces the earlier."""
        key = kernel, strategies.identity(trial.config)
        before = self.finished.get(key)
        self.finished[key] = Finished(kernel, trial)
        self.failed += trial.outcome != "ok"
        if before is not None:
            self.failed -= before.trial.outcome != "ok"
        if before is not None and before.trial is self.best:
            right = (f.trial for f in self.finished.values() if f.trial.outcome == "ok")
            self.best = min(right, key=time_us, default=None)
        elif trial.outcome == "ok" and (self.best is None or time_us(trial) < time_us(self.best)):
            self.best = trial
