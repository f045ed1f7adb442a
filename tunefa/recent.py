"""A mapping that keeps what was used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """The `size` values used last. Threads may read while one writes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable) -> Value | None:
        """The value under a key; None where there is none, or not any more."""
        value = self._values.get(key)
        if value is not None:
            try:  # contextlib.suppress takes three times as long, and every call comes here
                self._values.move_to_end(key)
            except KeyError:  # dropped by another thread since
                return value
        return value

    def add(self, key: Hashable, value: Value) -> None:
        """Keeps a value, dropping the one whose use is longest ago if there are too many."""
        self._values[key] = value
        if len(self._values) > self._size:
            self._values.popitem(last=False)

    def clear(self) -> None:
        """Drops all."""
        self._values.clear()
