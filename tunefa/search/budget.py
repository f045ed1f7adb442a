"""How long a search may take."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field

from tunefa.errors import TunefaError

LOOK_S = 7.0
"""What each of several kernels is left at least: its compilers start, the first of them are done,
and two configs race."""
LOOK_TRIALS = 20
"""The same of a budget of trials: enough of them are right to say what the kernel is worth."""
_NEXT = 2 / 3
"""Of what is beyond these looks, the part of the kernel that is searched next. The first is the one
that is expected to win; not all is its own, as the model of time may be wrong about kernels."""


@dataclass(frozen=True)
class Budget:
    """How long a search may take: seconds, start-up and the last check included, or trials."""

    seconds: float | None = None
    trials: int | None = None
    start: float = field(default_factory=lambda: time.monotonic(), compare=False, repr=False)
    """When its seconds begin to count, by `time.monotonic`: when it was made."""

    @classmethod
    def parse(cls, text: str) -> Budget:
        """`60s` or `2m` for a time, `200` for trials. Raises TunefaError for anything else."""
        found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]+)?)(s|m|min)?", text.strip())
        if found is None or float(found[1]) <= 0 or (not found[2] and "." in found[1]):
            raise TunefaError(
                f"budget {text!r} is neither a time nor a number of trials: write 60s, 2m or 200"
            )
        if not found[2]:
            return cls(trials=int(found[1]))
        return cls(seconds=float(found[1]) * (1 if found[2] == "s" else 60))

    @property
    def elapsed_s(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self.start

    def deadline(self, share: float = 1.0) -> float:
        """The `time.monotonic` at which a share of its seconds is over; infinite without any."""
        return math.inf if self.seconds is None else self.start + share * self.seconds

    def trials_left(self, share: float, used: int) -> int | None:
        """How many more of its trials make a share; None for a budget of seconds."""
        if self.trials is None:
            return None
        return max(0, math.ceil(round(share * self.trials, 9)) - used)

    def shares(self, kernels: int, part: float = 1.0) -> list[float]:
        """How much of it is used when each of so many kernels is done: `part` with the last one.

        Each has a look, of little an equal part. Of what is beyond, the first has two thirds, the
        next two thirds of the rest, and so on. What one leaves over is there for the next.
        """
        whole, least = (self.seconds, LOOK_S) if self.seconds else (self.trials or 1, LOOK_TRIALS)
        look = min(least / whole, part / kernels)
        beyond = part - kernels * look
        ends = [n * look + beyond * (1 - (1 - _NEXT) ** n) for n in range(1, kernels)]
        return [*ends, part]

    def fraction(self, elapsed_s: float, done: int) -> float:
        """How much of it is used, 0 to 1."""
        used = elapsed_s / self.seconds if self.seconds else done / max(1, self.trials or 1)
        return min(1.0, used)
