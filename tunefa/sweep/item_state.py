"""The standing of each item of a sweep: what its slices have found, and what is left to gain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tunefa.spec.workload import Workload
from tunefa.sweep.slices import Slice

MOST_FAILURES = 3
"""An item is given up after so many slices in a row that found nothing right, or were lost."""


@dataclass(frozen=True)
class Standing:
    """The standing of one item. Gains are relative: 0.1 is 10 % less time than the default."""

    key: str
    weight: float
    workload: Workload
    promise: float | None = None
    """The gain that the model promises of the best config, before any ran; None if not known."""
    spent: float = 0.0
    """The part of the budget that its slices have had, in seconds or trials."""
    trials: int = 0
    default_us: float | None = None
    """The time of the fastest default of a kernel; None if none was right."""
    best_us: float | None = None
    """The time of its record; None without one."""
    hoped: float | None = None
    """The time that the most promising untried config is expected to save, relative to the best;
    None where no model says it."""
    is_settled: bool = False
    """Whether nothing is left to try."""
    is_busy: bool = False
    """Whether a worker has it now."""
    failures: int = 0
    least: float = 0.0
    """The least part of the budget with which a slice of it makes a record, where that is known."""

    @property
    def is_begun(self) -> bool:
        """Whether it has a record."""
        return self.best_us is not None

    @property
    def is_given_up(self) -> bool:
        """Whether it has failed too often."""
        return self.failures >= MOST_FAILURES

    @property
    def gain(self) -> float:
        """The part of the default's time that its record saves."""
        if self.best_us is None or not self.default_us:
            return 0.0
        return max(0.0, 1.0 - self.best_us / self.default_us)

    @property
    def saved(self) -> float:
        """The weighted time that its record saves."""
        return self.weight * self.gain

    def after(self, part: Slice) -> Standing:
        """Returns the standing with one more slice."""
        if part.is_running:
            return replace(self, is_busy=True)
        found = part.found
        if found is None:
            return replace(self, failures=self.failures + part.counts)
        spent = self.spent + float(found.get("used", part.amount))
        made = replace(self, spent=spent, trials=int(found.get("trials", 0)))
        if found.get("best_us") is None:
            return replace(made, failures=self.failures + 1)
        return replace(
            made, failures=0, default_us=found.get("default_us") or self.default_us,
            best_us=found["best_us"], hoped=found.get("hoped"),
            is_settled=bool(found.get("settled")),
        )  # fmt: skip


def standings(begin: Sequence[Standing], slices: Iterable[Slice]) -> list[Standing]:
    """Returns the standing of each item after these slices; others' slices are left out."""
    by_key = {each.key: each for each in begin}
    for part in slices:
        if part.key in by_key:
            by_key[part.key] = by_key[part.key].after(part)
    return list(by_key.values())
