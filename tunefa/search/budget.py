"""The budget of a search: how long it may take, and how several kernels share it."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field, replace

from tunefa.errors import TunefaError

FLOOR_S = 20.0
"""The seconds within which a search ends that has a smaller budget. In this time the defaults of
four kernels are compiled and one of them is checked (docs/search.md has the figures)."""
LOOK_S = 7.0
"""The least time of each of several kernels: enough to start its compilers, to get the first
configs and to race two of them."""
LOOK_TRIALS = 20
"""The least number of trials of each of several kernels: enough to judge the kernel."""
_NEXT = 2 / 3
"""The part of the remaining budget that the kernel searched next gets. The first kernel is the one
that is expected to win. It does not get all, as the cost model may be wrong about kernels."""


@dataclass(frozen=True)
class Budget:
    """The limit of a search: in seconds, from start-up to the last check, or in trials."""

    seconds: float | None = None
    trials: int | None = None
    start: float = field(default_factory=lambda: time.monotonic(), compare=False, repr=False)
    """The `time.monotonic` from which its seconds count: when the budget was made."""
    floor_s: float = FLOOR_S
    """The seconds for the defaults where its own are fewer; in a sweep, whose compilers run
    already, the defaults get no more than its own."""

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Reads a time (`60s`, `2m`) or trials (`200`). Raises TunefaError for anything else."""
        found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?)(s|m|min)?", text.strip())
        if found is None or float(found[1]) <= 0 or (not found[2] and "." in found[1]):
            raise TunefaError(
                f"budget {text!r} is neither a time nor a number of trials: write 60s, 2m or 200"
            )
        if not found[2]:
            return cls(trials=int(found[1]))
        return cls(seconds=float(found[1]) * (1 if found[2] == "s" else 60))

    def from_now(self, seconds: float | None) -> Budget:
        """Returns the budget with so many seconds, counted from now."""
        return replace(self, seconds=seconds, start=time.monotonic())

    @property
    def elapsed_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.start

    def deadline(self, share: float = 1.0) -> float:
        """The `time.monotonic` at which a share of its seconds is over; infinite for trials."""
        return math.inf if self.seconds is None else self.start + share * self.seconds

    def patience(self, share: float) -> float:
        """The `time.monotonic` until which a default may take: the deadline of that share, but at
        the earliest `floor_s` after the start; infinite for trials."""
        return max(self.deadline(share), self.start + self.floor_s)

    def trials_left(self, share: float, used: int) -> int | None:
        """The trials of a share that are left after `used`; None for a budget of seconds."""
        if self.trials is None:
            return None
        return max(0, math.ceil(round(share * self.trials, 9)) - used)

    def shares(self, kernels: int, part: float = 1.0) -> list[float]:
        """The fractions of the budget that are used when each of so many kernels is done.

        The last fraction is `part`. Each kernel gets the least time or number of trials for a look
        at it, or an equal part of a small budget. Of the rest, the first kernel gets two thirds,
        the next one two thirds of what is then left, and so on. A kernel may use what the ones
        before it left over.
        """
        whole, least = (self.seconds, LOOK_S) if self.seconds else (self.trials or 1, LOOK_TRIALS)
        look = min(least / whole, part / kernels)
        beyond = part - kernels * look
        ends = [n * look + beyond * (1 - (1 - _NEXT) ** n) for n in range(1, kernels)]
        return [*ends, part]

    def fraction(self, elapsed_s: float, done: int) -> float:
        """The fraction of the budget that is used, 0 to 1."""
        used = elapsed_s / self.seconds if self.seconds else done / max(1, self.trials or 1)
        return min(1.0, used)
