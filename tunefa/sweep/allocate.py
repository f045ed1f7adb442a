"""Where the next part of a sweep's budget goes: to the item of which the most weighted time is
expected to be saved for it.

Before an item has a record, its gain is expected to be what items of its op have gained so far, and
`EXPECTED_GAIN` while there are none. After that, it is what the surrogate of its search expects of
the most promising config that was not tried: the expected improvement, relative to the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tunefa.sweep.standing import Standing

EXPECTED_GAIN = 0.1
"""The gain over the default that is expected of an item without any other."""
_WITHOUT_MODEL = 0.02
"""The gain that is expected of more trials where no model says it: of the strategies without a
surrogate."""
WORTH = 0.001
"""An item of which less is expected to be gained, relatively, is done: races cannot show it."""


@dataclass(frozen=True)
class Amounts:
    """How much of the budget a slice may have, in seconds or in trials."""

    least: float
    """Less makes no record: it must be enough for the defaults, some configs and a race."""
    most: float
    """After so much, the standing of the other items decides again."""


SECONDS = {
    "measured": Amounts(10.0, 30.0),
    "predicted": Amounts(5.0, 25.0),
}
"""By kind of times. On two cores a prediction takes 6 s or more, which is mostly compiling."""
TRIALS = Amounts(4.0, 16.0)


@dataclass(frozen=True)
class Grant:
    """An item, and the part of the budget that its next slice gets."""

    key: str
    amount: float


def expected_gains(items: Sequence[Standing]) -> dict[str, float]:
    """Returns the gain that is still expected of each item, relative to its default's time, by its
    key; 0 for those that are done or given up."""
    return {each.key: _expected(each, items) for each in items}


def _expected(item: Standing, items: Sequence[Standing]) -> float:
    if item.is_settled or item.is_given_up:
        return 0.0
    if not item.is_begun:
        known = [each.gain for each in items if each.is_begun and each.op == item.op]
        return (EXPECTED_GAIN + sum(known)) / (1 + len(known))
    hoped = _WITHOUT_MODEL if item.hoped is None else item.hoped
    return hoped * (1.0 - item.gain) if hoped >= WORTH else 0.0


def grant(items: Sequence[Standing], left: float, workers: int, amounts: Amounts) -> Grant | None:
    """Returns the item that gets the next slice, and how much of the budget; None if no item is
    free that is worth it, or the rest of the budget is too small.

    `left` is what is left of the budget for one worker, in seconds, or for all, in trials.
    `workers` share what is left of it.
    """
    if left < amounts.least:
        return None
    expected = expected_gains(items)
    free = [each for each in items if not each.is_busy and expected[each.key] > 0.0]
    if not free:
        return None
    chosen = max(free, key=lambda each: (each.weight * expected[each.key], -each.spent))
    new = sum(not each.is_begun and expected[each.key] > 0.0 for each in items)
    fair = left * workers / max(1, new)
    amount = min(amounts.most, max(amounts.least, fair), left)
    return Grant(chosen.key, amount if left - amount >= amounts.least else min(left, amounts.most))
