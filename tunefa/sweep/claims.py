"""The workloads that a worker claims: one after the other, the one that is worth the most first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tunefa.search import race_time
from tunefa.sweep import allocate
from tunefa.sweep.allocate import Amounts
from tunefa.sweep.clock import Clock
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.item_state import Standing, standings
from tunefa.sweep.plan import Item
from tunefa.sweep.requests import Items, searched
from tunefa.sweep.slices import GONE_S, Slice, Watch
from tunefa.sweep.study import SweepStudy

_MOST_OF_BUDGET = 0.6
"""A workload is said to need at most this part of what is left when the worker begins: one that
needs more is tried all the same."""
_TRIES = 4
"""So often a worker tries to claim its first workload, before it goes on without one."""


@dataclass
class Claims:
    """The claims of one worker. Its methods raise TunefaError if the storage fails."""

    study: SweepStudy
    items: Items
    who: HostProcess
    clock: Clock
    amounts: Amounts
    watch: Watch = field(default_factory=lambda: Watch(GONE_S))
    values: dict[str, float] = field(init=False, default_factory=dict)
    """By key: what a slice of each workload was worth at the last look, see `allocate.worth`."""
    least: dict[str, float] = field(init=False, default_factory=dict)
    """By key: the seconds that each workload is thought to need for a record, where times are
    measured."""
    pace: float = field(init=False, default=1.0)
    """The time that races took so far, relative to what was thought."""
    _left_at_first: float = field(init=False, default=math.inf)
    """The budget that was left at the first look."""
    seen: Sequence[Slice] = field(init=False, default=())
    """The slices of all workers at the last look."""
    is_over: bool = field(init=False, default=False)
    """Whether nothing was left to do then."""
    was_late: bool = field(init=False, default=False)
    """Whether another worker was first then."""

    def __post_init__(self) -> None:
        plan = self.study.plan
        if plan.measured and self.clock.seconds is not None:
            for each in self.items.items:
                count = searched(plan, each)
                self.least[each.key] = race_time.record_s(each.workload, each.target, count)

    def next(self, running: Sequence[Slice] = (), waiting: Sequence[Slice] = ()) -> Slice | None:
        """Claims the workload that is worth the most; None if none is free that is worth it, or
        another worker was first.

        `running` are the slices that this worker has in progress; those of them that are `waiting`
        have the GPU before this one, if they are worth more.
        """
        self.is_over = self.was_late = False
        now, left, workers = self._looked()
        if self.clock.trials is None:
            free = [each for each in now if not each.is_busy and each.least <= left]
            best = max((self.values[each.key] for each in free), default=0.0)
            left -= sum(each.amount for each in waiting if self.values.get(each.key, 0.0) >= best)
        granted = allocate.grant(now, left, workers, self.amounts, self.values)
        if granted is None:
            busy = any(each.is_busy for each in now)
            self.is_over = not running and (left < self.amounts.least or not busy)
            return None
        claimed = self.study.claim(granted.key, granted.amount, self.who)
        self.was_late = claimed is None
        return claimed

    def look(self) -> None:
        """Finds out what each workload is worth now."""
        self._looked()

    def _looked(self) -> tuple[Sequence[Standing], float, int]:
        """Returns the standing of each workload, what is left, and how many workers share it."""
        self.seen = slices = self._living(self.study.slices())
        left, workers = self.clock.left(slices), self._workers(slices)
        if math.isinf(self._left_at_first):
            self._left_at_first = left
        now = standings(self.items.begin(self.study.notes, self.needs), slices)
        self.values = allocate.worth(now, left, workers, self.amounts)
        return now, left, workers

    def first(self) -> Slice | None:
        """Claims as `next` does, but again while another worker was first: the workers of a sweep
        start together, and all want the same workload."""
        for _ in range(_TRIES):
            claimed = self.next()
            if not self.was_late:
                break
        return claimed

    @property
    def needs(self) -> dict[str, float]:
        """By key: the seconds that each workload needs for a record, as far as that is known."""
        if self.clock.seconds is None:
            return {}
        most_s = _MOST_OF_BUDGET * max(0.0, min(self.clock.seconds, self._left_at_first))
        return {key: min(self.pace * least_s, most_s) for key, least_s in self.least.items()}

    def item(self, claimed: Slice) -> Item:
        """The workload of a slice."""
        return next(each for each in self.items.items if each.key == claimed.key)

    def unclaimed(self, claimed: Slice) -> list[Item]:
        """The workloads that have no slice beside this one, as far as was seen, the one that is
        worth the most first."""
        begun = {claimed.key, *(each.key for each in self.seen)}
        left = [each for each in self.items.items if each.key not in begun]
        return sorted(left, key=lambda each: -self.values[each.key])

    def is_first(self, claimed: Slice) -> bool:
        """Whether the workload of a slice had none before, as far as was seen."""
        return all(each.key != claimed.key for each in self.seen if each.id != claimed.id)

    def _living(self, slices: Sequence[Slice]) -> list[Slice]:
        """The slices, after those of lost workers were ended."""
        lost = self.watch.lost(slices)
        for each in lost:
            self.study.fail(each, f"its worker, {each.worker.seat}, was lost")
        return self.study.slices() if lost else list(slices)

    def _workers(self, slices: Sequence[Slice]) -> int:
        """The number of workers that share what is left; 1 for trials, which have one sum."""
        if self.clock.trials is not None:
            return 1
        return len({self.who, *(each.worker for each in slices if each.is_running)})
