"""The item that gets the next part of a sweep's budget: the one that is expected to save the most
weighted time for it.

Before an item has a record, its gain is expected to be a part of what the cost model promises of
its best config: the part that items like it have kept of their promises. After that, it is what the
surrogate of its search expects of the most promising config that was not tried: the expected
improvement, relative to the default.

A workload without a record gets one in time: when what is left of the budget is just enough for the
records that are missing, they come first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tunefa.spec import matmul
from tunefa.spec.workload import Workload
from tunefa.store import distances
from tunefa.sweep.item_state import Standing

PROMISE = 0.1
"""The gain over the default that the model promises where nobody has asked it."""
LEAST_PROMISE = 0.02
"""The least promise: the model may be wrong about the default."""
KEPT = 0.5
"""The part of a promise that is gained, as far as nothing else is known."""
_PRIOR_WEIGHT = 0.1
"""The weight of `KEPT`: as much as items just like it with promises of so much together."""
_OCTAVES = 2.0
"""The octaves between two workloads at which the gain of one says half as much about the other."""
_WITHOUT_MODEL = 0.1
"""The gain that is expected of more trials where no model says it, divided by the trials so far: of
strategies without a surrogate, such as random."""
RESERVED = 1.3
"""So many times what the missing records need at least is kept for them: compilers may be late."""
WORTH = 0.001
"""An item of which less is expected to be gained, relatively, is done: races cannot show it."""


@dataclass(frozen=True)
class Amounts:
    """The amounts of the budget that slices may have, in seconds or in trials."""

    least: float
    """A slice with less is not worth its start; what an item needs for a record may be more."""
    most: float
    """After so much, the standing of the other items decides again."""
    first: float = 1.0
    """The part of an equal share that a slice gets while some items have no record."""


SECONDS = {
    "measured": Amounts(2.5, 20.0, first=0.5),
    "predicted": Amounts(5.0, 25.0),
}
"""By kind of times. What a measured slice times first was compiled before it began. On two cores a
prediction takes 6 s or more, which is mostly compiling."""
TRIALS = Amounts(4.0, 4.0)
"""A trial costs the same in every slice, so slices are short: what is next is decided often."""


@dataclass(frozen=True)
class Grant:
    """An item, and the part of the budget that its next slice gets."""

    key: str
    amount: float


def expected_gains(items: Sequence[Standing]) -> dict[str, float]:
    """Returns the gain that is still expected of each item, relative to its default's time, by its
    key; 0 for those that are done or given up."""
    begun = [each for each in items if each.is_begun]
    return {each.key: _expected(each, begun) for each in items}


def _expected(item: Standing, begun: Sequence[Standing]) -> float:
    if item.is_settled or item.is_given_up:
        return 0.0
    if not item.is_begun:
        return _promised(item) * _kept(item, begun)
    hoped = _WITHOUT_MODEL / max(1, item.trials) if item.hoped is None else item.hoped
    return hoped * (1.0 - item.gain) if hoped >= WORTH else 0.0


def _promised(item: Standing) -> float:
    return PROMISE if item.promise is None else max(LEAST_PROMISE, item.promise)


def _kept(item: Standing, begun: Sequence[Standing]) -> float:
    """The part that was gained of what the model promised, of items like this one above all."""
    weights = [(alike(item.workload, each.workload), each) for each in begun]
    gained = sum(weight * (each.gain + _still(each)) for weight, each in weights)
    promised = sum(weight * _promised(each) for weight, each in weights)
    return (KEPT * _PRIOR_WEIGHT + gained) / (_PRIOR_WEIGHT + promised)


def _still(item: Standing) -> float:
    return (item.hoped or 0.0) * (1.0 - item.gain)


def alike(a: Workload, b: Workload) -> float:
    """Returns how much the gain of one workload says about that of another, 1 for the same: it
    halves with each two octaves between them, and with each property that changes the kernel."""
    if a.op != b.op or a.op == matmul.OP:
        return float(a == b)
    differ = (a.head_dim != b.head_dim, a.dtype != b.dtype, a.causal != b.causal)
    return float(2.0 ** -(distances.distance(a, b) / _OCTAVES + sum(differ)))


def worth(
    items: Sequence[Standing], left: float, workers: int, amounts: Amounts
) -> dict[str, float]:
    """Returns what a second or a trial for each item is worth, by its key: the weighted gain that
    is expected of it, divided by what a record needs; 0 for those that are done or given up.

    Items without a record, for which there is time, are worth more than all others once a quarter
    of the budget is used, and another slice might leave too little for them. In the first quarter,
    a small budget goes where most is gained.
    """
    expected = expected_gains(items)
    needs = {each.key: max(amounts.least, each.least) for each in items}
    found = {each.key: each.weight * expected[each.key] / needs[each.key] for each in items}
    new = [each.key for each in items if not each.is_begun and found[each.key] > 0.0
           and needs[each.key] <= left]  # fmt: skip
    if not new:
        return found
    needed = max(sum(needs[key] for key in new) / workers, *(needs[key] for key in new))
    used = sum(each.spent for each in items) / workers
    if left <= min(RESERVED * needed + amounts.most, 3.0 * used):
        most = max(found.values())
        found |= {key: most + found[key] for key in new}
    return found


def grant(
    items: Sequence[Standing], left: float, workers: int, amounts: Amounts,
    values: Mapping[str, float] | None = None,
) -> Grant | None:  # fmt: skip
    """Returns the item that gets the next slice, and how much of the budget; None if no item is
    free that is worth it, or the rest of the budget is too small.

    `left` is what is left of the budget for one worker, in seconds, or for all, in trials.
    `workers` share what is left of it. `values` are those of `worth`, where they are known.
    """
    if left < amounts.least:
        return None
    values = worth(items, left, workers, amounts) if values is None else values
    wanted = [each for each in items if values[each.key] > 0.0]
    free = [each for each in wanted if not each.is_busy and each.least <= left]
    if not free:
        return None
    chosen = max(free, key=lambda each: (values[each.key], -each.spent))
    fair = amounts.first * left * workers / max(1, sum(not each.is_begun for each in wanted))
    least = max(amounts.least, chosen.least)
    most = max(amounts.most, least)
    amount = min(most, max(least, fair), left)
    return Grant(chosen.key, amount if left - amount >= amounts.least else min(left, most))
