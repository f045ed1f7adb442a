"""A mapping that keeps what was used lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Values of `size` together, one each if nothing weighs them. Threads may read while one
    writes.

    The one that goes is the oldest that was not used since it was added or last spared ("second
    chance": Tanenbaum, Modern Operating Systems, section 3.4). Keeping the exact order would cost
    every call a second lookup of its long key.
    """

    def __init__(self, size: int, weigh: Callable[[Value], int] = lambda value: 1) -> None:
        self._size, self._weigh, self._total = size, weigh, 0
        self._values: OrderedDict[Hashable, _Kept[Value]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """The value under a key; None where there is none, or not any more."""
        kept = self._values.get(key)
        if kept is None:
            return None
        kept.used = True
        return kept.value

    def add(self, key: Hashable, value: Value) -> None:
        """Keeps a value, dropping others until all have room."""
        before = self._values.get(key)
        self._values[key] = kept = _Kept(value, self._weigh(value))
        self._total += kept.weight - (before.weight if before else 0)
        while self._total > self._size and len(self._values) > 1:
            oldest, other = self._values.popitem(last=False)
            if other.used or other is kept:
                other.used = False
                self._values[oldest] = other
            else:
                self._total -= other.weight

    def clear(self) -> None:
        """Drops all."""
        self._values.clear()
        self._total = 0


class _Kept(Generic[Value]):
    __slots__ = ("used", "value", "weight")

    def __init__(self, value: Value, weight: int) -> None:
        self.value, self.weight, self.used = value, weight, False
