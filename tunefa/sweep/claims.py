"""What a worker claims: one workload after the other, that which is worth the most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tunefa.sweep import allocate
from tunefa.sweep.allocate import Amounts
from tunefa.sweep.clock import Clock
from tunefa.sweep.host_process import HostProcess
from tunefa.sweep.item_state import standings
from tunefa.sweep.plan import Item
from tunefa.sweep.requests import Items
from tunefa.sweep.slices import GONE_S, Slice, Watch
from tunefa.sweep.study import SweepStudy

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
    """By key: the gain that is expected of each workload, weighted, at the last look."""
    seen: Sequence[Slice] = field(init=False, default=())
    """The slices of all workers at the last look."""
    is_over: bool = field(init=False, default=False)
    """Whether nothing was left to do then."""
    was_late: bool = field(init=False, default=False)
    """Whether another worker was first then."""

    def next(self, running: Sequence[Slice] = (), waiting: Sequence[Slice] = ()) -> Slice | None:
        """Claims the workload that is worth the most; None if none is free that is worth it, or
        another worker was first.

        `running` are the slices that this worker has in progress; those of them that are `waiting`
        have the GPU before this one.
        """
        self.is_over = self.was_late = False
        self.seen = slices = self._living(self.study.slices())
        now = standings(self.items.begin(self.study.notes), slices)
        expected = allocate.expected_gains(now)
        self.values = {each.key: each.weight * expected[each.key] for each in now}
        left = self.clock.left(slices)
        if self.clock.trials is None:
            left -= sum(each.amount for each in waiting)
        granted = allocate.grant(now, left, self._workers(slices), self.amounts)
        if granted is None:
            busy = any(each.is_busy for each in now)
            self.is_over = not running and (left < self.amounts.least or not busy)
            return None
        claimed = self.study.claim(granted.key, granted.amount, self.who)
        self.was_late = claimed is None
        return claimed

    def first(self) -> Slice | None:
        """Claims as `next` does, but again while another worker was first: the workers of a sweep
        start together, and all want the same workload."""
        for _ in range(_TRIES):
            claimed = self.next()
            if not self.was_late:
                break
        return claimed

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
        """How many workers share what is left; 1 for trials, of which there is one sum."""
        if self.clock.trials is not None:
            return 1
        return len({self.who, *(each.worker for each in slices if each.is_running)})
