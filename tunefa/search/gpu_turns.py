"""The turns of several searches at one GPU: while one times its configs, others prepare theirs.

A search has much to do before it times anything: it lists its configs, asks the cost model for all
of them, and lets compilers work for seconds. So several are begun, and each asks for the GPU when
it has something to time. The GPU goes to the most valuable of those that are ready. While none is,
or the one that has it waits for compilers, others time what is compiled of theirs already.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, Protocol

from tunefa.errors import TunefaError

_LOOK_S = 0.02
"""Between two looks at whether a search has something to time."""
_PACE_S = 3.0
"""The pace of races is 1 at first, as if races of so many seconds had shown it."""
_State = Literal["preparing", "compiling", "ready", "trying", "timing", "lending", "over"]
"""`trying`: it waits for its turn, and tries a config that is compiled meanwhile. `lending`: it has
the GPU, waits for compilers, and lets others try theirs."""


class Waiting(Protocol):
    """The work of a search that waits for the GPU."""

    @property
    def is_choosing(self) -> bool:
        """Whether it chooses what to compile, so that others begin to choose after it."""

    def is_enough(self) -> bool:
        """Lets compilers go on. Returns whether enough is compiled."""

    def has_untried(self) -> bool:
        """Returns whether a config is compiled and was not tried."""

    def try_one(self) -> None:
        """Tries such a config on the GPU."""


class NoTurnLeft(TunefaError):
    """A search gets no turn any more. The message says why."""


class Turn:
    """The turn of one search at the GPU."""

    def __init__(self, gpu_turns: Turns, name: str, value: float, least_s: float) -> None:
        self.name, self.value, self.least_s = name, value, least_s
        self.state: _State = "preparing"
        self.may_try = False
        self.is_ready = False  # it waits with enough compiled, also while it tries a config
        self.is_choosing = False  # it has not asked for all configs yet, also while it tries one
        self._turns = gpu_turns

    @contextlib.contextmanager
    def taken(self, waiting: Waiting | None = None) -> Iterator[None]:
        """Waits until enough is compiled and the GPU is free; with None, until it is free. The
        search has the GPU in the context.

        Configs may be tried before. Raises NoTurnLeft if there is no time left for it, and what
        `Waiting.try_one` raises.
        """
        try:
            self._turns.begin(self, waiting)
            yield
        finally:
            self.end()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Lets other searches try their configs in the context, one by one. At its end it waits for
        the last of them."""
        self._turns.lend(self)
        try:
            yield
        finally:
            self._turns.reclaim(self)

    def end(self) -> None:
        """Leaves the GPU to others; a search that fails may not have had it."""
        self._turns.end(self)

    @property
    def has_begun(self) -> bool:
        """Whether it has the GPU."""
        return self.state in ("timing", "lending")

    @property
    def searches(self) -> int:
        """The count of searches that have the GPU, wait for it or prepare for it, with this one."""
        return self._turns.searches

    @property
    def left_s(self) -> float:
        """The seconds that are left of the budget of all searches."""
        return self._turns.left_s()

    def seconds(self, asked_s: float) -> float:
        """The seconds that it has when it begins: those that were asked for, or those that it needs
        where these are more, but all that are left of the budget where no other turn could begin
        after it."""
        left_s, asked_s = self.left_s, max(asked_s, self.least_s)
        return left_s if left_s - asked_s < self._turns.least_after(self) else asked_s

    @property
    def pace(self) -> float:
        """The time that the races of this GPU took so far, relative to what was planned."""
        return self._turns.pace

    def raced(self, planned_s: float, took_s: float) -> None:
        """Says how long a race took."""
        self._turns.raced(planned_s, took_s)

    @property
    def is_wanted(self) -> bool:
        """Whether another search is ready for the GPU."""
        return self._turns.count("ready") > 0

    @property
    def has_borrowers(self) -> bool:
        """Whether another search would borrow the GPU: a config of it is compiled."""
        return self._turns.has_borrowers(self)


class Turns:
    """The turns at one GPU."""

    def __init__(
        self, left_s: Callable[[], float] = lambda: math.inf, least_s: float = 0.0
    ) -> None:
        """`left_s` returns the seconds that are left of the budget; no turn begins with fewer than
        `least_s`, or than it needs itself."""
        self.left_s, self.least_s = left_s, least_s
        self._changed = threading.Condition()
        self._turns: list[Turn] = []
        self._tried: Turn | None = None  # the last that tried a config
        self._why_closed = ""
        self._free_s, self._free_since = 0.0, time.monotonic()
        self._planned_s = self._took_s = _PACE_S
        self._needed_s: dict[str, float] = {}  # by the name of each search that may come

    def new(self, name: str, value: float, least_s: float = 0.0) -> Turn:
        """Returns the turn of a search that begins to prepare, and needs `least_s` seconds of the
        GPU for a record. The largest `value` comes first."""
        with self._changed:
            self._turns.append(turn := Turn(self, name, value, max(least_s, self.least_s)))
        return turn

    @property
    def pace(self) -> float:
        """See `Turn.pace`."""
        with self._changed:
            return self._took_s / self._planned_s

    def raced(self, planned_s: float, took_s: float) -> None:
        """See `Turn.raced`."""
        with self._changed:
            self._planned_s, self._took_s = self._planned_s + planned_s, self._took_s + took_s

    def least_after(self, turn: Turn) -> float:
        """Returns the fewest seconds with which a turn could begin after this one: that of a search
        that waits, or of one that may come, as this one may again."""
        with self._changed:
            others = [each.least_s for each in self._turns if each is not turn]
            others += self._needed_s.values()
        return max(self.least_s, min(others, default=0.0))

    def value(self, values: Mapping[str, float], least_s: Mapping[str, float]) -> None:
        """Says what searches with these names are worth now, and what they need."""
        with self._changed:
            self._needed_s = {n: s for n, s in least_s.items() if values.get(n, 0.0) > 0.0}
            for turn in self._turns:
                turn.value = values.get(turn.name, turn.value)
                turn.least_s = max(self.least_s, least_s.get(turn.name, turn.least_s))

    def close(self, why: str) -> None:
        """Lets no turn begin any more. The one that has begun goes on."""
        with self._changed:
            self._why_closed = self._why_closed or why
            self._changed.notify_all()

    def count(self, *states: _State) -> int:
        """Returns how many searches are in one of these states. A search that is ready counts as
        `ready` while it tries a config, too; one that chooses configs counts as `preparing`, so
        that compilers get these before those of the next search."""
        with self._changed:
            return sum(
                turn.state in states
                or ("ready" in states and turn.state == "trying" and turn.is_ready)
                or ("preparing" in states and turn.is_choosing)
                for turn in self._turns
            )

    def has_borrowers(self, turn: Turn) -> bool:
        """See `Turn.has_borrowers`."""
        with self._changed:
            return any(each.may_try for each in self._turns if each is not turn)

    @property
    def searches(self) -> int:
        """The number of searches that are not over."""
        with self._changed:
            return len(self._turns)

    @property
    def free_s(self) -> float:
        """The seconds in which no search had the GPU."""
        with self._changed:
            now = 0.0 if self._is_taken else time.monotonic() - self._free_since
            return self._free_s + now

    @property
    def _is_taken(self) -> bool:
        return self._is_any("timing", "trying", "lending")

    def _is_any(self, *states: _State) -> bool:
        return any(turn.state in states for turn in self._turns)

    def begin(self, turn: Turn, waiting: Waiting | None) -> None:
        """Waits until a turn begins, see `Turn.taken`."""
        while True:
            turn.is_ready = waiting is None or waiting.is_enough()
            turn.is_choosing = waiting is not None and waiting.is_choosing
            state: _State = "ready" if turn.is_ready else "compiling"
            turn.may_try = waiting is not None and waiting.has_untried()
            with self._changed:
                if self._why_closed or self.left_s() < turn.least_s:
                    raise NoTurnLeft(self._why_closed or "the budget was used before its turn")
                turn.state = state
                if not self._is_taken and turn is self._first():
                    self._take(turn, "timing")
                    return
                tries = self._may_try(turn)
                if tries:
                    self._take(turn, "trying")
                else:
                    self._changed.wait(_LOOK_S)
            if tries and waiting is not None:
                try:
                    waiting.try_one()
                    turn.may_try = waiting.has_untried()  # so that no other tries one in between
                finally:
                    self._leave(turn, state)

    def _may_try(self, turn: Turn) -> bool:
        """Whether a search that waits may try a config: none is ready, or the GPU is lent."""
        if self._is_any("timing", "trying"):
            return False
        if self._is_any("ready") and not self._is_any("lending"):
            return False
        willing = [each for each in self._turns if each.may_try]
        if self._tried in willing:  # the bench makes the tensors of each workload anew
            return turn is self._tried
        return turn is max(willing, key=lambda each: each.value, default=None)

    def _first(self) -> Turn | None:
        ready = [turn for turn in self._turns if turn.state == "ready"]
        return max(ready, key=lambda turn: turn.value, default=None)

    def _take(self, turn: Turn, state: _State) -> None:
        if state == "trying":
            self._tried = turn
        turn.may_try = False
        if not self._is_taken:
            self._free_s += time.monotonic() - self._free_since
        turn.state = state

    def _leave(self, turn: Turn, state: _State) -> None:
        with self._changed:
            turn.state = state
            if not self._is_taken:
                self._free_since = time.monotonic()
            self._changed.notify_all()

    def lend(self, turn: Turn) -> None:
        """Begins to lend the GPU, see `Turn.lent`."""
        self._leave(turn, "lending")

    def reclaim(self, turn: Turn) -> None:
        """Ends lending, see `Turn.lent`."""
        with self._changed:
            turn.state = "timing"  # so no other trial begins
            self._changed.wait_for(lambda: not self._is_any("trying"))

    def end(self, turn: Turn) -> None:
        """Ends a turn, whether it has begun or not."""
        with self._changed:
            had_it = turn.state in ("timing", "trying", "lending")
            if turn.state != "over":
                turn.state = "over"
                self._turns.remove(turn)
            if had_it and not self._is_taken:
                self._free_since = time.monotonic()
            self._changed.notify_all()
