"""Set cover: the fewest sets that together hold every element, and a proof that fewer cannot.

Both problems here are integer programs, which HiGHS solves by branch and bound (scipy's `milp`). It
also returns the greatest lower bound that it has proved. If its time is over before both meet, the
cover is the best that is known, and the bound says how many sets could be saved at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SECONDS = 10.0
"""The time of one integer program. Those of 23 workloads take some hundredths of a second."""
_ROUNDING = 1e-6
"""HiGHS returns whole numbers with an error of this size."""


@dataclass(frozen=True)
class Cover:
    """A set cover, and the least number of sets that any cover can have."""

    chosen: tuple[int, ...]
    """The places of its sets."""
    bound: int

    @property
    def is_exact(self) -> bool:
        """Whether it is proved that no cover has fewer sets."""
        return len(self.chosen) == self.bound


def fewest(sets: Sequence[int], everything: int, seconds: float = SECONDS) -> Cover:
    """Returns a cover with as few sets as possible. The bits of a set are its elements.

    `everything` has the bits of all elements. Raises ValueError if no cover exists.
    """
    first = {held: place for place, held in reversed(list(enumerate(sets)))}
    kept: list[int] = []
    for held in sorted(first, key=int.bit_count, reverse=True):
        if not any(other == held | other for other in kept):
            kept.append(held)
    elements = [bit for bit in range(everything.bit_length()) if everything >> bit & 1]
    rows = [[j for j, held in enumerate(kept) if held >> bit & 1] for bit in elements]
    if not all(rows):
        raise ValueError("an element is in no set")
    if not rows:
        return Cover((), 0)
    known = _greedy(kept, everything)
    count = len(kept)
    entries = [(i, j, 1.0) for i, row in enumerate(rows) for j in row]
    found = _milp(
        [1.0] * count, [(_matrix(entries, len(rows), count), 1, math.inf)], count, seconds
    )
    if found.x is not None:
        taken = [j for j in range(count) if found.x[j] > 0.5]
        known = taken if len(taken) <= len(known) else known
    bound = 1 if found.mip_dual_bound is None else math.ceil(found.mip_dual_bound - _ROUNDING)
    return Cover(tuple(sorted(first[kept[j]] for j in known)), max(1, min(bound, len(known))))


def cheapest(
    costs: Sequence[Mapping[int, float]], count: int, seconds: float = SECONDS
) -> tuple[int, ...] | None:
    """Returns the cover of at most `count` sets with the least sum of costs (the p-median problem).

    `costs` has, for each element, the sets that hold it and what it costs there; an element is
    assigned to one set. The cover is the best that is known when the time is over. None if no cover
    is known.
    """
    names = sorted({name for row in costs for name in row})
    if count == 1:
        common = [name for name in names if all(name in row for row in costs)]
        return (min(common, key=lambda name: sum(row[name] for row in costs)),) if common else None
    column = {name: place for place, name in enumerate(names)}
    pairs = [(i, column[name], cost) for i, row in enumerate(costs) for name, cost in row.items()]
    taken, size = len(names), len(names) + len(pairs)
    assigned = [(i, taken + p, 1.0) for p, (i, _, _) in enumerate(pairs)]
    opened = [(p, taken + p, 1.0) for p in range(len(pairs))]
    opened += [(p, j, -1.0) for p, (_, j, _) in enumerate(pairs)]
    limits = [
        (_matrix(assigned, len(costs), size), 1, 1),
        (_matrix(opened, len(pairs), size), -math.inf, 0),
        (_matrix([(0, j, 1.0) for j in range(taken)], 1, size), 0, count),
    ]
    found = _milp([0.0] * taken + [cost for *_, cost in pairs], limits, taken, seconds)
    if found.x is None:
        return None
    return tuple(names[j] for j in range(taken) if found.x[j] > 0.5)


def _greedy(sets: Sequence[int], everything: int) -> list[int]:
    """Returns a cover that takes the set with the most elements that are left, again and again."""
    chosen, left = [], everything
    while left:
        best = max(range(len(sets)), key=lambda j: (sets[j] & left).bit_count())
        chosen.append(best)
        left &= ~sets[best]
    return chosen


def _matrix(entries: Iterable[tuple[int, int, float]], rows: int, columns: int) -> Any:
    from scipy.sparse import csr_array

    places = list(entries)
    values = [value for *_, value in places]
    where = [row for row, *_ in places], [column for _, column, _ in places]
    return csr_array((values, where), shape=(rows, columns))


def _milp(
    costs: Sequence[float], limits: Sequence[tuple[Any, float, float]], whole: int, seconds: float
) -> Any:
    """Minimises the costs; the first `whole` variables are 0 or 1, the others between."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    return milp(
        costs,
        integrality=[1] * whole + [0] * (len(costs) - whole),
        bounds=Bounds(0, 1),
        constraints=[LinearConstraint(*limit) for limit in limits],
        options={"time_limit": seconds},
    )
