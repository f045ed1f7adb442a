"""The outcome of a sweep, from its study: at its end, and at any moment before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunefa.errors import TunefaError
from tunefa.sweep import allocate, gpu_time
from tunefa.sweep.clock import Clock
from tunefa.sweep.gpu_time import GpuTime
from tunefa.sweep.item_state import Standing, standings
from tunefa.sweep.requests import Items
from tunefa.sweep.seat import ASIDE, REFUSED
from tunefa.sweep.slices import Slice
from tunefa.sweep.study import SweepStudy


@dataclass(frozen=True)
class Outcome:
    """The standing of every item, and how it came about."""

    study: str
    shown: str
    """The address of its storage, without a password."""
    measured: bool
    clock: Clock
    spent: float
    """The part of the budget that was used, in seconds or trials."""
    items: tuple[Standing, ...]
    """The heaviest first."""
    slices: tuple[Slice, ...]
    expected: Mapping[str, float]
    """By key: the gain that is still expected, relative to the default's time."""
    refused: Mapping[str, str]
    """By key: why no kernel serves it."""
    aside: Mapping[str, str]
    """By GPU: why it was put aside."""
    errors: Mapping[str, str]
    """By worker: why it ended early."""
    interrupted: bool = False
    gpus: Mapping[str, GpuTime] = field(default_factory=dict)
    """By GPU: what it did, where times are measured."""

    @property
    def weight(self) -> float:
        """The weights of all items together."""
        return sum(each.weight for each in self.items)

    @property
    def saved(self) -> float:
        """The weighted time that is saved, in the unit of the weights."""
        return sum(each.saved for each in self.items)

    @property
    def hoped(self) -> float:
        """The weighted time that is expected to be left on the table."""
        return sum(each.weight * self.expected[each.key] for each in self.items)

    @property
    def missing(self) -> list[Standing]:
        """The items without a record."""
        return [each for each in self.items if not each.is_begun]

    @property
    def course(self) -> list[tuple[float, float]]:
        """The time saved after each slice: (what the sweep had used of its budget, weighted time
        saved)."""
        known = {each.key: Standing(each.key, each.weight, each.workload) for each in self.items}
        ended = [each for each in self.slices if each.found is not None]
        found = []
        for part in sorted(ended, key=lambda each: _at(each)):
            if part.key in known:
                known[part.key] = known[part.key].after(part)
                found.append((_at(part), sum(each.saved for each in known.values())))
        return found

    def last(self, key: str) -> Mapping[str, Any]:
        """The findings of an item's last slice that made a record; empty without one."""
        own = (each.found for each in reversed(self.slices) if each.key == key)
        return next((found for found in own if found and found.get("best_us") is not None), {})

    def busy_s(self) -> dict[str, float]:
        """Returns the seconds that each worker has searched, by what it works with."""
        found: dict[str, float] = {}
        for each in self.slices:
            name = each.worker.seat
            found[name] = found.get(name, 0.0) + each.took_s
        return found


def _at(part: Slice) -> float:
    return float((part.found or {}).get("at", 0.0))


def outcome(
    study: SweepStudy, errors: Mapping[str, str] | None = None, interrupted: bool = False
) -> Outcome:
    """Reads the outcome of a sweep, which may still run. Raises TunefaError if its storage fails.

    On GPUs that the workers find, the items are those of every GPU that a worker has used.
    """
    plan, notes, slices = study.plan, study.notes, study.slices()
    items = Items.on(plan, {each.key for each in slices}, _refused(notes))
    made = standings(items.begin(notes), slices)
    made.sort(key=lambda each: -each.weight)
    clock = Clock.of(notes)
    return Outcome(
        study=study.name,
        shown=study.shown,
        measured=plan.measured,
        clock=clock,
        spent=float(notes.get("spent_s", 0.0)) if clock.trials is None else clock.spent(slices),
        items=tuple(made),
        slices=tuple(slices),
        expected=allocate.expected_gains(made),
        refused=_refused(notes),
        aside={
            n.removeprefix(ASIDE): why for n, why in notes.items() if n.startswith(ASIDE) and why
        },
        errors=dict(errors or {}),
        interrupted=interrupted,
        gpus=gpu_time.of(notes),
    )


def _refused(notes: Mapping[str, Any]) -> dict[str, str]:
    return {n.removeprefix(REFUSED): why for n, why in notes.items() if n.startswith(REFUSED)}


def check(found: Outcome) -> None:
    """Raises TunefaError where a sweep ended without anything: all of its workers have failed, or
    no kernel serves a workload."""
    if any(each.is_begun for each in found.items) or found.interrupted:
        return
    if found.errors:
        worker, why = next(iter(found.errors.items()))
        raise TunefaError(f"{worker} ended: {why}")
    if found.refused and not found.items:
        raise TunefaError("; ".join(dict.fromkeys(found.refused.values())))


def finished(found: Sequence[Slice]) -> int:
    """Returns how many of the slices came to their end."""
    return sum(each.found is not None for each in found)
