"""The tables that kernels read on one device, shared by launches that need equal ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from tunefa.compile.launch.prepared import apart
from tunefa.runtime.bounded_cache import BoundedCache

MAX_BYTES = 2**26
"""Bytes of tables that are kept for a device."""


class TableCache:
    """Keeps the tables that were used last. A launch holds its own tables, whatever is kept."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.place = "cpu" if device < 0 else f"cuda:{device}"
        self._kept: BoundedCache[tuple[Tensor, ...]] = BoundedCache(MAX_BYTES, _bytes)

    def __len__(self) -> int:
        return len(self._kept)

    def __call__(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Returns the tables under a key; makes them, apart from the caller's stream and graph
        capture, if there are none."""
        found = self._kept.get(key)
        if found is None:
            found = apart(self.device, make)
            self._kept.add(key, found)
        return found


def _bytes(tables: tuple[Tensor, ...]) -> int:
    return sum(each.untyped_storage().nbytes() for each in tables)
