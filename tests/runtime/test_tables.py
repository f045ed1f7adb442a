"""tunefa/runtime/tables.py: tables that launches share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tunefa.runtime import tables
from tunefa.runtime.tables import TableCache


def test_tables_are_made_once_and_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    apart: list[int] = []

    def recorded(device: int, work: Any) -> Any:
        apart.append(device)
        return work()

    monkeypatch.setattr(tables, "apart", recorded)
    monkeypatch.setattr(tables, "MAX_BYTES", 1000)
    kept = TableCache(3)
    made = [kept(key, lambda: (torch.zeros(100), torch.zeros(1))) for key in ("a", "a", "b")]
    assert made[0] is made[1] and made[0] is not made[2]
    assert apart == [3, 3] and len(kept) == 2
    kept("c", lambda: (torch.zeros(100),))
    assert len(kept) == 2  # a thousand bytes hold two
