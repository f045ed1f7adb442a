"""The turns of several searches at one GPU: while one times its configs, others prepare theirs.

A search has much to do before it times anything: it lists its configs, asks the cost model for all
of them, and lets compilers work for seconds. So several are begun, and each asks for the GPU when
it has something to time. The GPU goes to the most valuable of those that are ready.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from tunefa.errors import TunefaError

_LOOK_S = 0.02
"""Between two looks at whether a search has something to time."""


class NoTurnLeft(TunefaError):
    """A search gets no turn any more. The message says why."""


class Turn:
    """The turn of one search at the GPU."""

    def __init__(self, gpu_turns: Turns, name: str, value: float) -> None:
        self.name, self.value = name, value
        self.state: Literal["preparing", "compiling", "ready", "timing", "over"] = "preparing"
        self._turns = gpu_turns

    @contextlib.contextmanager
    def taken(self, is_ready: Callable[[], bool]) -> Iterator[None]:
        """Waits until `is_ready()` and the GPU is free. The search has the GPU in the context.

        Raises NoTurnLeft if there is no time left for it.
        """
        self._turns.begin(self, is_ready)
        try:
            yield
        finally:
            self.end()

    def end(self) -> None:
        """Leaves the GPU to others; a search that fails may not have had it."""
        self._turns.end(self)

    @property
    def left_s(self) -> float:
        """The seconds that are left of the budget of all searches."""
        return self._turns.left_s()

    @property
    def is_wanted(self) -> bool:
        """Whether another search is ready for the GPU."""
        return self._turns.count("ready") > 0


class Turns:
    """The turns at one GPU."""

    def __init__(
        self, left_s: Callable[[], float] = lambda: math.inf, least_s: float = 0.0
    ) -> None:
        """`left_s` returns the seconds that are left of the budget; no turn begins with fewer than
        `least_s`."""
        self.left_s, self._least_s = left_s, least_s
        self._changed = threading.Condition()
        self._turns: list[Turn] = []
        self._why_closed = ""
        self._free_s, self._free_since = 0.0, time.monotonic()

    def new(self, name: str, value: float) -> Turn:
        """Returns the turn of a search that begins to prepare; the largest `value` comes first."""
        with self._changed:
            self._turns.append(turn := Turn(self, name, value))
        return turn

    def value(self, values: Mapping[str, float]) -> None:
        """Says what the searches with these names are worth now."""
        with self._changed:
            for turn in self._turns:
                turn.value = values.get(turn.name, turn.value)

    def close(self, why: str) -> None:
        """Lets no turn begin any more. The one that has begun goes on."""
        with self._changed:
            self._why_closed = self._why_closed or why
            self._changed.notify_all()

    def count(self, state: str) -> int:
        """Returns how many searches are in a state."""
        with self._changed:
            return sum(turn.state == state for turn in self._turns)

    @property
    def free_s(self) -> float:
        """The seconds in which no search had the GPU."""
        with self._changed:
            now = 0.0 if self._timing else time.monotonic() - self._free_since
            return self._free_s + now

    @property
    def _timing(self) -> bool:
        return any(turn.state == "timing" for turn in self._turns)

    def begin(self, turn: Turn, is_ready: Callable[[], bool]) -> None:
        """Waits until a turn begins, see `Turn.taken`."""
        turn.state = "compiling"
        while True:
            if is_ready():  # also when it was before: it may let compilers go on
                turn.state = "ready"
            with self._changed:
                if self._why_closed or self.left_s() < self._least_s:
                    raise NoTurnLeft(self._why_closed or "the budget was used before its turn")
                if not self._timing and turn is self._first():
                    self._free_s += time.monotonic() - self._free_since
                    turn.state = "timing"
                    return
                self._changed.wait(_LOOK_S)

    def _first(self) -> Turn | None:
        ready = [turn for turn in self._turns if turn.state == "ready"]
        return max(ready, key=lambda turn: turn.value, default=None)

    def end(self, turn: Turn) -> None:
        """Ends a turn, whether it has begun or not."""
        with self._changed:
            if turn.state == "timing":
                self._free_since = time.monotonic()
            if turn.state != "over":
                turn.state = "over"
                self._turns.remove(turn)
            self._changed.notify_all()
