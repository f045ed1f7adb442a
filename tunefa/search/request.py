"""What a search is asked, where it stands, and what it found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tunefa.measure import race
from tunefa.search.budget import Budget
from tunefa.spec.arch import NpuArch
from tunefa.spec.kernel import Kernel
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Mode, Trial, time_us
from tunefa.spec.workload import Workload
from tunefa.store.landscape import Landscape
from tunefa.store.record import ObjectiveKind, Record


@dataclass(frozen=True)
class Request:
    """What to search, and how."""

    workload: Workload
    target: Target
    measured: bool
    """Whether the target is the device of this machine, which times what is found."""
    kernels: tuple[Kernel, ...]
    budget: Budget
    strategy: str = "auto"
    seed: int = 0
    workers: int | None = None
    """Processes that compile; None for one per core."""
    finalists: int = 8
    """How many race for the win, beside those they must beat."""
    resume: Path | None = None
    """The journal to go on with, see `tunefa.search.resume`."""
    mode: Mode = "eager"
    """How launches are timed, see `tunefa.measure.timing`; unused where nothing is measured."""
    storage: str | None = None
    """The database for the Optuna studies; None for a file beside the journal."""
    replay: Landscape | None = None
    """What answers in place of a device or a compiler; nothing is stored then."""
    estimate: bool = False
    """Whether formulas answer in place of an NPU's compiler."""

    def case(self, kernel: Kernel) -> Case:
        """One of the kernels on the workload and target."""
        return Case(kernel, self.workload, self.target)

    @property
    def objective(self) -> ObjectiveKind:
        """What its times are."""
        if self.replay is not None:
            return "replayed"
        if self.measured:
            return "measured"
        if isinstance(self.target.arch, NpuArch):
            return "estimated" if self.estimate else "modelled"
        return "predicted"

    @property
    def serving_mode(self) -> Mode | None:
        """How what it finds was timed; None where a model says the time."""
        if self.replay is not None:
            return self.replay.mode
        return self.mode if self.measured else None


@dataclass(frozen=True)
class FinishedTrial:
    """A trial and the kernel it belongs to."""

    kernel: str
    trial: Trial


@dataclass(frozen=True)
class Progress:
    """Where a search stands."""

    kernel: str
    done: int
    failed: int
    best: Trial | None
    elapsed_s: float
    fraction: float
    """The part of the budget that is used, 0 to 1."""
    stage: str
    earlier: float = 0.0
    """The part of the budget that the search which this one continues has used."""


@dataclass(frozen=True)
class Result:
    """What a search found."""

    request: Request
    record: Record | None
    """The winner; None when nothing valid was found."""
    finished: tuple[FinishedTrial, ...]
    feasible: dict[str, Feasible]
    elapsed_s: float
    journal: Path
    stored: Path | None
    interrupted: bool
    left_early: Mapping[str, float] = field(default_factory=dict)
    """By kernel that had no chance any more, how much slower its best was than another's."""

    def top(self, n: int) -> list[FinishedTrial]:
        """The n best that are right, best first; those that raced before those that did not.

        Of equals the one that became the record comes first.
        """
        right = [f for f in self.finished if f.trial.outcome == "ok" and f.trial.median_us]
        return sorted(right, key=lambda f: (*_standing(f), not self._became_the_record(f)))[:n]

    def _became_the_record(self, finished: FinishedTrial) -> bool:
        best = self.record
        return best is not None and (finished.kernel, dict(finished.trial.config)) == (
            best.kernel,
            best.config,
        )


def _standing(finished: FinishedTrial) -> tuple[bool, float]:
    """Sort key: trials that raced first (a screening takes fewer samples), then the time."""
    screened = len(finished.trial.samples_us) < race.LOOK_EVERY
    return screened, time_us(finished.trial)
