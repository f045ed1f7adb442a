"""A strategy without a space: its configs are numbers."""

from __future__ import annotations

from tunefa.spec.trial import Config, Trial

FREE = 100
"""The number of the first config that needs no compiler."""


class Numbers:
    """Proposes 0, 1, 2 and so on; from FREE on there are `free` that need no compiler."""

    def __init__(self, free: int = 0) -> None:
        self.free, self.asked, self.asked_free = free, 0, 0

    def ask(self, compiled: bool = False) -> Config | None:
        if compiled:
            self.asked_free += 1
            return {"A": FREE + self.asked_free - 1} if self.asked_free <= self.free else None
        self.asked += 1
        return {"A": self.asked - 1}

    def tell(self, trial: Trial) -> None:
        pass
