"""A worker of a sweep: it claims a workload, searches it for a slice of the budget, tells what it
has found, and does so until nothing is left to do.

It may be killed at any time. Each finished trial is in the journal of its workload, and each
finished record in the store; whoever claims the workload next continues from there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunefa.compile import pool
from tunefa.compile.launch import driver
from tunefa.compile.place import Place
from tunefa.compile.workers import Workers
from tunefa.errors import TunefaError
from tunefa.search import run as search
from tunefa.search.request import Processes, Progress, Request
from tunefa.spec.target import Target
from tunefa.spec.trial import identity
from tunefa.store import journal
from tunefa.store import results as store
from tunefa.sweep import allocate, health, slice_result, versions
from tunefa.sweep.clock import Clock
from tunefa.sweep.cores import Share
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.item_state import standings
from tunefa.sweep.plan import Item, Plan
from tunefa.sweep.requests import Items, request
from tunefa.sweep.slices import BEAT_S, Slice, Watch
from tunefa.sweep.study import SweepStudy

ASIDE = "aside: "
"""The beginning of the study's notes about GPUs that were put aside."""
REFUSED = "refused: "
"""The beginning of its notes about workloads that no kernel serves on a chip."""
_PAUSE_S = 0.2
"""Between two looks of a worker that has nothing to do."""


@dataclass(frozen=True)
class Seat:
    """Where a worker takes part, and with what."""

    place: str
    """The address of the study's storage."""
    study: str
    """The study's name."""
    name: str
    """What it works with, for people: `GPU 0` or `cores`."""
    share: Share = field(default_factory=Share)
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables of its process, such as CUDA_VISIBLE_DEVICES."""


def work(seat: Seat) -> str | None:
    """Works until nothing is left of the budget or of the sweep.

    Returns why its GPU was put aside; None at the sweep's end. Raises TunefaError if the storage,
    a journal or the store cannot be written, if there is no GPU, and if this host has other
    versions than the sweep.
    """
    import optuna

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = SweepStudy.found(seat.place, seat.study)
    plan = study.plan
    items = Items.of(plan, targets(plan))
    for key, why in items.refused.items():
        if study.notes.get(REFUSED + key) != why:
            study.note(REFUSED + key, why)
    versions.agree(study, plan, items)
    with _processes(plan, seat.share) as shared:
        worker = _Worker(study, plan, items, seat, HostProcess.here(seat.name), shared)
        aside = worker.run()
    if aside is not None:
        study.note(f"{ASIDE}{seat.name} of {worker.who.host}", aside)
    return aside


def targets(plan: Plan) -> list[Target]:
    """Returns the chips of a plan: those that it names, or the GPU that this process sees.

    Raises TunefaError where there is none, or it has another name than the plan's.
    """
    if plan.targets:
        return [Target.named(name) for name in plan.targets]
    seen = driver.devices()
    if not seen:
        raise TunefaError(
            "this worker sees no GPU (CUDA_VISIBLE_DEVICES is "
            f"{os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')}): name chips to predict for with "
            "--arch, or start it where there is one"
        )
    first = seen[0]
    found = Target.seen(first.name, first.compute_capability, first.sms)
    if plan.device is not None and found.device.name != plan.device:
        raise TunefaError(f"this worker's GPU is {found.device.name}, not {plan.device}")
    return [found]


@contextlib.contextmanager
def _processes(plan: Plan, share: Share) -> Iterator[Processes | None]:
    """The bench and the compilers of a measured sweep, which all its slices share."""
    if not plan.measured:
        yield None
        return
    place = Place(cores=share.compilers)
    with Workers(1) as bench, pool.compilers(share.processes, place=place) as compilers:
        yield Processes(bench, compilers)


@dataclass
class _Worker:
    study: SweepStudy
    plan: Plan
    items: Items
    seat: Seat
    who: HostProcess
    shared: Processes | None
    watch: Watch = field(default_factory=Watch)

    def run(self) -> str | None:
        """Works off slices. Returns why the GPU was put aside."""
        clock = Clock.of(self.study.notes)
        aside = None
        while aside is None:
            slices = self._living(self.study.slices())
            now = standings(self.items.begin(self.study.notes), slices)
            left = clock.left(slices)
            amounts = clock.amounts(self.plan.measured)
            granted = allocate.grant(now, left, self._workers(slices, clock), amounts)
            if granted is None:
                if left < amounts.least or not any(each.is_busy for each in now):
                    return None
                time.sleep(_PAUSE_S)  # another worker may be lost, and leave its workload
                continue
            claimed = self.study.claim(granted.key, granted.amount, self.who)
            if claimed is not None:
                aside = self._slice(claimed, clock)
        return aside

    def _living(self, slices: Sequence[Slice]) -> list[Slice]:
        """The slices, after those of lost workers were ended."""
        lost = self.watch.lost(slices)
        for each in lost:
            self.study.fail(each, f"its worker, {each.worker.seat}, was lost")
        return self.study.slices() if lost else list(slices)

    def _workers(self, slices: Sequence[Slice], clock: Clock) -> int:
        """How many workers share what is left; 1 for trials, of which there is one sum."""
        if clock.trials is not None:
            return 1
        return 1 + sum(each.is_running for each in slices)

    def _slice(self, claimed: Slice, clock: Clock) -> str | None:
        """Searches a workload for a slice. Returns why the GPU must be put aside."""
        item = next(each for each in self.items.items if each.key == claimed.key)
        with _Beat(self.study, claimed) as beat:
            try:
                asked, earlier = self._request(item, clock, claimed.amount)
                beat.note(earlier)
                result = search.search(asked, store.default_store(), beat, self.shared)
            except TunefaError as error:
                self.study.fail(claimed, str(error))
                if isinstance(error.__cause__, OSError):  # nothing can be written any more
                    raise
                return None
        aside = None
        if self.shared is not None:
            aside = health.why_aside(result, self.shared.bench)
        if aside is not None:
            why = f"{self.seat.name} is put aside, as {aside}"
            self.study.fail(claimed, why, counts=False)
            return aside
        at = clock.spent(self.study.slices())
        self.study.complete(claimed, slice_result.told(result, earlier, claimed.amount, at))
        return None

    def _request(self, item: Item, clock: Clock, amount: float) -> tuple[Request, int]:
        """The search of a slice, and how many trials it continues from."""
        workers = self.seat.share.processes
        budget = clock.slice_budget(amount, 0)
        asked = request(self.plan, item, budget, workers, self.study.name)
        if asked.resume is None:
            return asked, 0
        done = {(kernel, identity(trial.config)) for kernel, trial in journal.read(asked.resume)}
        again = clock.slice_budget(amount, len(done))
        return request(self.plan, item, again, workers, self.study.name), len(done)


class _Beat:
    """Tells the study every few seconds that a slice goes on, and how far it is. A context
    manager, and a listener to the search's progress."""

    def __init__(self, study: SweepStudy, claimed: Slice) -> None:
        self._study, self._claimed = study, claimed
        self._last: dict[str, Any] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> _Beat:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def note(self, earlier: int) -> None:
        """Says how many trials the slice begins with."""
        self._last = {"done": earlier}

    def __call__(self, progress: Progress) -> None:
        """Takes the progress of the search."""
        best = None if progress.best is None else progress.best.median_us
        self._last = {"done": progress.done, "stage": progress.stage, "best_us": best}

    def _run(self) -> None:
        while not self._ended.wait(BEAT_S):
            with contextlib.suppress(TunefaError):  # the search's own writing says what is wrong
                self._study.say(self._claimed, "beat", {"at": time.time(), **self._last})
