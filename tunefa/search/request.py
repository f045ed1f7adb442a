"""The request, the progress and the result of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tunefa.compile import provenance
from tunefa.compile.workers import Workers
from tunefa.costmodel.ranking import rank_us
from tunefa.measure import race
from tunefa.search.budget import Budget
from tunefa.search.gpu_turns import Turn
from tunefa.spec.arch import NpuArch
from tunefa.spec.kernel import Kernel
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Mode, Trial
from tunefa.spec.workload import Workload
from tunefa.store.landscape import Landscape
from tunefa.store.record import ObjectiveKind, Record

if TYPE_CHECKING:  # they bring NumPy, before BLAS is told its threads
    from tunefa.search.compiled_before import CompiledBefore
    from tunefa.search.model_process import ModelProcess


def usual_mode(workload: Workload) -> Mode:
    """The mode of a search that names none: programs capture attention over a cache together with
    the other kernels of a step, and call other ops."""
    return "step" if workload.op == "decode" else "eager"


@dataclass(frozen=True)
class Request:
    """The workload, target and kernels of a search, and its options."""

    workload: Workload
    target: Target
    measured: bool
    """Whether the target is the device of this machine, so that configs are timed on it."""
    kernels: tuple[Kernel, ...]
    budget: Budget
    strategy: str = "auto"
    seed: int = 0
    workers: int | None = None
    """The number of processes that compile; None means one per core."""
    finalists: int = 8
    """The number of the best trials that race, beside the configs that they must beat."""
    resume: Path | None = None
    """The journal of the search to continue, see `tunefa.search.resume`."""
    mode: Mode = "eager"
    """The way launches are made when they are timed, see `tunefa.measure.timing`."""
    storage: str | None = None
    """The URL of the database for the Optuna studies; None means a file beside the journal."""
    replay: Landscape | None = None
    """A recorded landscape that answers instead of a device; nothing is stored then."""
    estimate: bool = False
    """Whether formulas answer instead of an NPU's compiler."""
    sweep: str | None = None
    """The name of the sweep that the search is a part of."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Notes on the search for the record's provenance, beside its trials and its strategy."""
    versions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By kernel: its provenance, where another process has found it out. For a library that takes
    PyTorch, which is loaded for seconds. The source hash is that of now all the same."""

    def case(self, kernel: Kernel) -> Case:
        """The case of one of the kernels, on the workload and the target."""
        return Case(kernel, self.workload, self.target)

    def provenance(self, kernel: Kernel) -> dict[str, Any]:
        """The versions of all that influences one of the kernels, and the date."""
        known = self.versions.get(kernel.name)
        if known is None:
            return provenance.of(kernel)
        return {**known, "source_hash": kernel.source_hash, "date": provenance.now()}

    @property
    def objective(self) -> ObjectiveKind:
        """The kind of objective, which says what the times of its trials are."""
        if self.replay is not None:
            return "replayed"
        if self.measured:
            return "measured"
        if isinstance(self.target.arch, NpuArch):
            return "estimated" if self.estimate else "modelled"
        return "predicted"

    @property
    def serving_mode(self) -> Mode | None:
        """The mode that its trials were timed in; None where nothing is timed."""
        if self.replay is not None:
            return self.replay.mode
        return self.mode if self.measured else None


@dataclass(frozen=True)
class Processes:
    """Processes that several measured searches share: it takes seconds to start them."""

    bench: Workers
    """The one worker in which kernels run."""
    compilers: Workers
    model: ModelProcess | None = None
    """The process that lists configs and asks the cost model; with None, each search does so."""
    compiled: CompiledBefore | None = None
    """The configs that the searches have compiled; with None, no search asks."""
    turn: Turn | None = None
    """Its turn at the bench, where several searches prepare at once."""


@dataclass(frozen=True)
class FinishedTrial:
    """A trial and the kernel it belongs to."""

    kernel: str
    trial: Trial

    def is_of(self, record: Record) -> bool:
        """Whether its config is the record's."""
        return (self.kernel, dict(self.trial.config)) == (record.kernel, record.config)


@dataclass(frozen=True)
class Progress:
    """The state of a search at one moment."""

    kernel: str
    done: int
    failed: int
    best: Trial | None
    elapsed_s: float
    fraction: float
    """The fraction of the budget that is used, 0 to 1."""
    stage: str
    """`search`, `race` or `check`."""
    earlier: float = 0.0
    """The fraction of the budget that was used by the search which this one continues."""


@dataclass(frozen=True)
class Result:
    """The result of a search."""

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
    """The relative excess time of the best config of each kernel that was given up early."""
    settled: Mapping[str, int] = field(default_factory=dict)
    """The number of configs of each kernel that were not compiled because none of them could change
    the decision."""
    gave_way: bool = False
    """Whether it would have gone on with more time, or with a GPU of its own: compilers worked for
    it, see `StoppingRule.gave_way`, or its time was over."""
    hoped: Mapping[str, float] = field(default_factory=dict)
    """The time that the most promising untried config of each kernel is expected to save, relative
    to the best of all. Kernels whose strategy has no model are left out, and those that had lost
    before they were searched."""

    def top(self, n: int) -> list[FinishedTrial]:
        """The n best right trials, best first; trials that raced come before those that did not.

        Among equals, the one that became the record comes first.
        """
        right = [f for f in self.finished if f.trial.outcome == "ok" and f.trial.median_us]
        return sorted(right, key=lambda f: (*_standing(f), not self._became_the_record(f)))[:n]

    def _became_the_record(self, finished: FinishedTrial) -> bool:
        return self.record is not None and finished.is_of(self.record)


def _standing(finished: FinishedTrial) -> tuple[bool, float]:
    """The sort key of `top`. A trial has raced if it has more samples than a screening takes."""
    screened = len(finished.trial.samples_us) < race.LOOK_EVERY
    return screened, rank_us(finished.trial)
