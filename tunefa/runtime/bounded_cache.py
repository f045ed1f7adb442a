"""A mapping of limited size that keeps the values used most recently."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class BoundedCache(Generic[Value]):
    """Keeps values whose weights sum up to at most `size`. Several threads may read while one
    writes.

    `weigh` returns a value's weight; by default each weighs 1. The value that is dropped is the
    oldest one that was not used since it was added or last spared (the "second chance" algorithm:
    Tanenbaum, Modern Operating Systems, section 3.4). To keep the exact order of use, every call
    would have to look up its long key twice.
    """

    def __init__(self, size: int, weigh: Callable[[Value], int] = lambda value: 1) -> None:
        self._size, self._weigh, self._total = size, weigh, 0
        self._values: OrderedDict[Hashable, _Entry[Value]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """Returns the value under a key; None if there is none, or it was dropped."""
        entry = self._values.get(key)
        if entry is None:
            return None
        entry.used = True
        return entry.value

    def add(self, key: Hashable, value: Value) -> None:
        """Adds a value, and drops others until the rest fits."""
        before = self._values.get(key)
        self._values[key] = entry = _Entry(value, self._weigh(value))
        self._total += entry.weight - (before.weight if before else 0)
        while self._total > self._size and len(self._values) > 1:
            oldest, other = self._values.popitem(last=False)
            if other.used or other is entry:
                other.used = False
                self._values[oldest] = other
            else:
                self._total -= other.weight

    def values(self) -> Iterator[Value]:
        """Yields all values. The caller makes sure that no other thread writes."""
        yield from (entry.value for entry in self._values.values())

    def clear(self) -> None:
        """Drops all values."""
        self._values.clear()
        self._total = 0


class _Entry(Generic[Value]):
    __slots__ = ("used", "value", "weight")

    def __init__(self, value: Value, weight: int) -> None:
        self.value, self.weight, self.used = value, weight, False
