"""A worker of a sweep: it claims a workload, searches it for a slice of the budget, tells what it
has found, and does so until nothing is left to do.

It may be killed at any time. Each finished trial is in the journal of its workload, and each
finished record in the store; whoever claims the workload next continues from there.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import optuna

from tunefa.compile.launch import driver
from tunefa.errors import TunefaError
from tunefa.search import run as search
from tunefa.search.compiled_before import CompiledBefore
from tunefa.search.gpu_turns import NoTurnLeft, Turn, Turns
from tunefa.search.model_process import ModelProcess
from tunefa.search.request import Processes, Request, Result
from tunefa.spec.target import Target
from tunefa.spec.trial import identity
from tunefa.store import journal
from tunefa.store import results as store
from tunefa.sweep import beginning, gpu_time, health, installed, slice_result, versions
from tunefa.sweep.beat import Beat
from tunefa.sweep.claims import Claims
from tunefa.sweep.clock import Clock
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.installed import Installed
from tunefa.sweep.plan import Item, Plan
from tunefa.sweep.processes import Started
from tunefa.sweep.requests import Items, Requests
from tunefa.sweep.seat import ASIDE, REFUSED, Seat
from tunefa.sweep.slices import Slice
from tunefa.sweep.study import SweepStudy

MOST_SLICES = 10
"""The slices that a worker has in progress at most: they bound the memory, and what is compiled
before it is known to be needed."""
READY_SLICES = 2
"""So many slices that are ready for the GPU are enough."""
_LOOK_S = 0.5
"""Between two looks at what its slices are worth, while it begins no others."""
_PAUSE_S = 0.1
"""Between two looks of a worker at its slices, and at the study."""
_SWITCH_S = 0.0002
"""After so long, a thread that prepares a slice lets that of the slice with the GPU go on."""


def work(seat: Seat, started: Started | None = None) -> str | None:
    """Does what `tunefa.sweep.start.work` says, with the processes that were started for it."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = SweepStudy.found(seat.place, seat.study)
    plan = study.plan
    items = Items.of(plan, targets(plan))
    for key, why in items.refused.items():
        if study.notes.get(REFUSED + key) != why:
            study.note(REFUSED + key, why)
    kernels, asked = versions.kernels_of(plan, items), None
    if started is not None and kernels:
        asked = installed.ask(started, kernels, items.items[0].target.arch.name)
    worker = _Worker(study, plan, items, seat, HostProcess.here(seat.name), _shared(started))
    with worker.prepared():
        worker.installed = versions.agree(study, plan, kernels, asked)  # when PyTorch is loaded
    if worker.overlaps:
        sys.setswitchinterval(_SWITCH_S)
    aside = worker.run()
    if aside is not None:
        study.note(f"{ASIDE}{seat.name} of {worker.who.host}", aside)
    return aside


def _shared(started: Started | None) -> Processes | None:
    """The processes as searches know them."""
    if started is None:
        return None
    model = ModelProcess(*started.models) if started.models else None
    return Processes(started.bench, started.compilers, model, CompiledBefore())


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


@dataclass
class _Worker:
    study: SweepStudy
    plan: Plan
    items: Items
    seat: Seat
    who: HostProcess
    shared: Processes | None
    running: dict[Future[str | None], tuple[Slice, Turn]] = field(default_factory=dict)
    first: Slice | None = field(init=False, default=None)
    """The slice that it has claimed before it begins."""
    installed: Installed | None = None
    """The software that is installed here; None if each search finds it out."""
    gpu_turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        self.clock, self.store = Clock.of(self.study.notes), store.default_store()
        self.amounts = self.clock.amounts(self.plan.measured)
        self.claims = Claims(self.study, self.items, self.who, self.clock, self.amounts)
        self.overlaps = self.shared is not None and bool(self.seat.share.compilers)

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Claims its first workload. Compilers and the model begin with it, while the process does
        what it does in the context."""
        shared = self.shared
        if shared is None or shared.model is None or (first := self.claims.first()) is None:
            yield
            return
        self.first = first
        try:
            with Beat(self.study, first):
                claims = self.claims
                item, is_first = claims.item(first), claims.is_first(first)
                others = claims.unclaimed(first)
                beginning.begin(self.plan, item, shared, shared.model, is_first, others)
                self.store.records()  # it keeps what it has read, for all slices
                yield
        except BaseException as error:
            self._give_back(str(error) or type(error).__name__)
            raise

    def _give_back(self, why: str) -> None:
        """Leaves the slice that it has claimed and not begun to others."""
        if self.first is not None:
            with contextlib.suppress(TunefaError):  # the error that ends it is raised
                self.study.fail(self.first, why, counts=False)

    def run(self) -> str | None:
        """Works off slices. Returns why the GPU was put aside.

        Where compilers have cores of their own, several slices are in progress: one has the GPU,
        and the others prepare for it.
        """
        least_s = self.amounts.least if self.clock.trials is None else 0.0
        self.gpu_turns = Turns(lambda: self.clock.until - time.time(), least_s)
        gpu_turns = self.gpu_turns if self.overlaps else None
        gpu, next_look = gpu_time.Meter(self.study, self.who, self.shared, gpu_turns), 0.0
        with ThreadPoolExecutor(MOST_SLICES) as threads:
            try:
                while (aside := self._ended()) is None:
                    gpu.note()
                    if self._begins_more():
                        if self._begin(threads):
                            return None
                    elif self.overlaps and time.monotonic() >= next_look:
                        self._value()
                        next_look = time.monotonic() + _LOOK_S
                    if self.running:
                        futures.wait(self.running, _PAUSE_S, futures.FIRST_COMPLETED)
                    else:
                        time.sleep(_PAUSE_S)  # another worker may be lost, and leave its workload
                return aside
            finally:
                self.gpu_turns.close(why := "its worker has ended")
                self._give_back(why)
                gpu.note(now=True)

    def _ended(self) -> str | None:
        """Takes the slices that have ended away. Returns why the GPU must be put aside."""
        done = [each for each in self.running if each.done()]
        for each in done:
            del self.running[each]
        return next(filter(None, [each.result() for each in done]), None)

    def _begins_more(self) -> bool:
        """Whether another slice may begin: one after the other chooses what to compile, until
        enough of them wait for the GPU."""
        if not self.running:
            return True
        if not self.overlaps or len(self.running) >= MOST_SLICES:
            return False
        count = self.gpu_turns.count
        return not count("preparing") and count("ready") < READY_SLICES

    def _begin(self, threads: ThreadPoolExecutor) -> bool:
        """Begins the slice that is worth the most, if there is one. Returns whether nothing is
        left to do."""
        claimed, self.first = self.first or self._claim(), None
        self.gpu_turns.value(self.claims.values, self.claims.needs)
        if claimed is not None:
            key, claims = claimed.key, self.claims
            turn = self.gpu_turns.new(key, claims.values[key], claims.needs.get(key, 0.0))
            self.running[threads.submit(self._slice, claimed, turn)] = claimed, turn
        return self.claims.is_over

    def _value(self) -> None:
        """Says what the slices that wait are worth by now: what is left of the budget decides."""
        self.claims.look()
        self.gpu_turns.value(self.claims.values, self.claims.needs)

    def _claim(self) -> Slice | None:
        """Claims the next workload; the slices that wait have the GPU before it."""
        running = [each for each, _ in self.running.values()]
        waiting = [each for each, turn in self.running.values() if not turn.has_begun]
        self.claims.pace = self.gpu_turns.pace
        return self.claims.next(running, waiting)

    def _slice(self, claimed: Slice, turn: Turn) -> str | None:
        """Searches a workload for a slice. Returns why the GPU must be put aside."""
        item = self.claims.item(claimed)
        shared = self.shared
        if shared is not None and self.overlaps:
            shared = replace(shared, turn=turn)
        try:
            with Beat(self.study, claimed) as beat:
                asked, earlier = self._request(item, claimed.amount)
                beat.note(earlier)
                result = search.search(asked, self.store, beat, shared)
            aside = None if self.shared is None else self._why_aside(result, self.shared)
        except NoTurnLeft as error:
            self.study.fail(claimed, str(error), counts=False)
            return None
        except TunefaError as error:
            self.study.fail(claimed, str(error))
            if isinstance(error.__cause__, OSError):  # nothing can be written any more
                raise
            return None
        finally:
            turn.end()
        if aside is not None:
            why = f"{self.seat.name} is put aside, as {aside}"
            self.study.fail(claimed, why, counts=False)
            return aside
        at = self.clock.spent(self.study.slices())
        self.study.complete(claimed, slice_result.told(result, earlier, claimed.amount, at))
        return None

    def _why_aside(self, result: Result, shared: Processes) -> str | None:
        """The reason to put the GPU aside, or None. A process that looks at it does so alone."""
        with contextlib.ExitStack() as stack:
            if self.overlaps and health.must_probe(result):
                stack.enter_context(self.gpu_turns.new("probe", math.inf).taken())
            return health.why_aside(result, shared.bench)

    def _request(self, item: Item, amount: float) -> tuple[Request, int]:
        """The search of a slice, and how many trials it continues from."""
        processes = self.seat.share.processes
        requests = Requests(self.plan, self.study.name, processes, self.installed)
        asked = requests.of(item, self.clock.slice_budget(amount, 0))
        if asked.resume is None:
            return asked, 0
        done = {(kernel, identity(trial.config)) for kernel, trial in journal.read(asked.resume)}
        return requests.of(item, self.clock.slice_budget(amount, len(done))), len(done)
