"""A sweep: an engine starts its workers, and this process watches over them until the end.

The workers decide among themselves what they do, by the study. This process keeps the clock, ends
the slices of workers that are lost, starts others in their place, and keeps the records that
workers of other hosts have found.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tunefa import assets
from tunefa.errors import TunefaError
from tunefa.search.budget import Budget
from tunefa.store import document
from tunefa.store import results as store
from tunefa.sweep import allocate, outcome, store_lock
from tunefa.sweep import clock as clocks
from tunefa.sweep.clock import Clock
from tunefa.sweep.engine import Ended, Engine
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.outcome import Outcome
from tunefa.sweep.predicted_gain import Promises
from tunefa.sweep.seat import ASIDE, Seat
from tunefa.sweep.slices import LOST_S, Watch
from tunefa.sweep.study import SweepStudy, errors, folder

GRACE_S = 10.0
"""The seconds beyond the budget after which workers that still search are ended. Their trials are
in the journals."""
MOST_STARTS = 3
"""A seat whose worker is lost gets another one, until it has had so many."""
_WAIT_S = 0.2
_LOOK_S = 2.0
"""Between two looks at the study. The seconds that a sweep had used when it was killed are known to
this precision."""
_COORDINATOR = "coordinator"


def sweep(
    study: SweepStudy,
    engine: Engine,
    budget: Budget,
    on_progress: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:
    """Runs a sweep, or continues it, until its budget is used or nothing is left to do.

    Seconds that the sweep had used before count in its budget. Ctrl-C ends it; the outcome is then
    marked `interrupted`. Raises TunefaError if another process runs the sweep, if the storage or
    the store cannot be written, and if nothing was found because every worker failed.
    """
    with _alone(study), engine, Promises() as promises:
        return _Coordinator(study, engine, budget, on_progress, promises).run()


def join(study: SweepStudy, engine: Engine) -> Outcome:
    """Adds the workers of an engine to a sweep that another process runs, and waits for their end.

    Raises TunefaError if there is nothing to work with.
    """
    lost: dict[str, str] = {}
    with engine:
        working = engine.seats(study.plan, study.place, study.name)
        for seat in working:
            engine.start(seat)
        while working:
            for ended in engine.ended(_LOOK_S):
                working.remove(ended.seat)
                if ended.error is not None:
                    lost[ended.seat.name] = ended.error
    return outcome.outcome(study, lost)


@dataclass
class _Coordinator:
    study: SweepStudy
    engine: Engine
    budget: Budget
    on_progress: Callable[[Outcome], None]
    promises: Promises
    watch: Watch = field(default_factory=Watch)
    starts: dict[str, int] = field(default_factory=dict)
    """By seat: how many workers it has had."""
    lost: dict[str, str] = field(default_factory=dict)
    """By seat: why its last worker ended early."""
    kept: set[int] = field(default_factory=set)
    """The slices of other hosts whose records are in this store."""

    def run(self) -> Outcome:
        """Runs the sweep."""
        before_s = float(self.study.notes.get("spent_s", 0.0))
        clock = Clock.started(self.budget, before_s)
        begun = self.budget.start  # its process may have loaded modules since
        self._forget()
        self._end_lost("the sweep was ended", counts=False)
        self.study.note(clocks.NOTE, clock.to_data())
        interrupted, next_look = False, time.monotonic()
        working = self.engine.seats(self.study.plan, self.study.place, self.study.name)
        try:
            for seat in working:
                self._start(seat)
            while working and time.time() < clock.until + GRACE_S:
                for ended in self.engine.ended(_WAIT_S):
                    working.remove(ended.seat)
                    if self._goes_on(ended):
                        self._start(ended.seat)
                        working.append(ended.seat)
                if time.monotonic() >= next_look:
                    self.study.note("spent_s", round(before_s + time.monotonic() - begun, 1))
                    self._look()
                    next_look = time.monotonic() + _LOOK_S
                    if self._is_done(clock):
                        break
        except KeyboardInterrupt:
            interrupted = True
        spent_s = before_s + time.monotonic() - begun
        self.study.note("spent_s", round(spent_s, 1))
        self.engine.stop()  # so that the slices of those that are left can be ended
        self._end_lost("the sweep was ended", counts=False)
        self._look()
        made = outcome.outcome(self.study, self.lost, interrupted)
        outcome.check(made)
        return made

    def _forget(self) -> None:
        """Takes back what an earlier process of this sweep has put aside."""
        for name in self.study.notes:
            if name.startswith(ASIDE):
                self.study.note(name, None)

    def _start(self, seat: Seat) -> None:
        self.starts[seat.name] = self.starts.get(seat.name, 0) + 1
        self.engine.start(seat)

    def _goes_on(self, ended: Ended) -> bool:
        """Whether another worker takes the seat of one that has ended."""
        if ended.error is None:
            return False
        name = ended.seat.name
        self.lost[name] = ended.error
        if ended.is_users:
            return False
        return self.starts[name] < MOST_STARTS

    def _is_done(self, clock: Clock) -> bool:
        """Whether there is nothing left to do, though workers may still wait for a node."""
        slices = self.study.slices()
        if not slices or any(each.is_running for each in slices):
            return False
        now = outcome.outcome(self.study).items
        amounts = clock.amounts(self.study.plan.measured)
        return allocate.grant(now, clock.left(slices), 1, amounts) is None

    def _end_lost(self, why: str, counts: bool) -> None:
        """Ends the slices whose workers are lost."""
        for each in self.watch.lost(self.study.slices()):
            self.study.fail(each, f"{why}: {each.worker.seat}", counts)

    def _look(self) -> None:
        """Ends the slices of lost workers, keeps the records of other hosts, and reports."""
        self._end_lost("its worker was lost", counts=True)
        for each in self.study.slices():
            found = each.found or {}
            if each.number not in self.kept and not each.worker.is_here and "record" in found:
                self.kept.add(each.number)
                for record in document.from_text(found["record"], self.study.place):
                    store.default_store().add(record)
        made = outcome.outcome(self.study, self.lost)
        self.on_progress(made)
        if self.study.plan.measured:
            self.promises.ask(self.study, made.items)


@contextlib.contextmanager
def _alone(study: SweepStudy) -> Iterator[None]:
    """Makes this process the only one that runs the sweep, and any sweep of this store.

    Raises TunefaError if another process does.
    """
    with errors(str(folder())):
        assets.make_folder(folder())
        descriptor = os.open(store_lock.path(), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TunefaError(
                f"another sweep writes to this store, {assets.home()}: wait for it or end it, add "
                "workers to it with --join, or set TUNEFA_HOME to another folder"
            ) from error
        _check_coordinator(study)
        study.note(_COORDINATOR, {**HostProcess.here().to_data(), "at": time.time()})
        try:
            yield
        finally:
            with contextlib.suppress(TunefaError):  # the storage may be why it ends
                study.note(_COORDINATOR, None)
    finally:
        os.close(descriptor)


def _check_coordinator(study: SweepStudy) -> None:
    """Raises TunefaError if a process of another host, or of another store, runs the sweep."""
    data = study.notes.get(_COORDINATOR)
    if not data:
        return
    who = HostProcess.from_data(data)
    if who.is_here and who.has_ended:
        return
    if not who.is_here and not _goes_on(study):
        return
    raise TunefaError(
        f"the process {who.pid} on {who.host.split()[0]} runs this sweep: wait for it or end it, "
        "or add workers to it with --join"
    )


def _goes_on(study: SweepStudy) -> bool:
    """Whether the process that runs the sweep still counts its seconds, within LOST_S."""
    before = study.notes.get("spent_s")
    until = time.monotonic() + LOST_S
    while time.monotonic() < until:
        time.sleep(_WAIT_S)
        if study.notes.get("spent_s") != before:
            return True
    return False
