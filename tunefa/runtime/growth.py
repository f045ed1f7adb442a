"""Plans of calls that are likely to come next.

Where a server generates tokens, sizes grow by the same steps from call to call. Then the plan of
the next call is made as soon as the present call has started its kernel, so that the next one finds
it as one that was seen before. It takes about 15 us of the host. A guess that was wrong costs a
plan that nobody asks for, which is dropped in time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from tunefa.compile.contract import CompileError
from tunefa.compile.launch.driver import DriverError
from tunefa.errors import TunefaError
from tunefa.runtime.bounded_cache import BoundedCache

Key = Any
"""The key of a call: a tuple of numbers, tuples and others."""
PlanOfCall = TypeVar("PlanOfCall")


class Lock(Protocol):
    """A lock that its thread may acquire again."""

    def acquire(self, blocking: bool = True) -> bool:
        """Returns whether the thread has the lock now."""

    def release(self) -> None:
        """Gives the lock back."""


class Growth:
    """The last calls of a family with a new key."""

    __slots__ = ("_before", "_next")

    def __init__(self) -> None:
        self._before: Key = None
        self._next: Key = None

    def after(self, key: Key) -> Key | None:
        """Returns the key that is likely to follow, if this one was; else None."""
        before, expected = self._before, self._next
        self._before = key
        self._next = None if before is None else following(before, key)
        return self._next if key == expected else None


def following(before: Key, now: Key) -> Key | None:
    """Returns the key whose numbers differ from those of `now` as these do from those of `before`;
    None where something else than numbers differs, and for equal keys."""
    if before == now:
        return None
    try:
        return _extrapolated(before, now)
    except ValueError:
        return None


def _extrapolated(before: tuple[Any, ...], now: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns what follows two tuples. Raises ValueError where nothing does."""
    found = []
    for old, new in zip(before, now, strict=True):  # a loop, as comprehensions are calls
        if old is not new and old != new:
            if type(old) is int and type(new) is int and 2 * new > old:
                new = 2 * new - old
            elif isinstance(old, tuple) and isinstance(new, tuple):
                new = _extrapolated(old, new)
            else:
                raise ValueError
        found.append(new)
    return tuple(found)


class Followed:
    """A plan whose first call may prepare the next call's."""

    __slots__ = ("growth", "then")

    def __init__(self, growth: Growth) -> None:
        self.growth = growth
        """The last new calls of the plan's family."""
        self.then: Callable[[], None] | None = None
        """Work that is done once, after the first launch."""

    def proceed(self) -> None:
        """Does what is done after the first launch, if no other thread has begun to."""
        then, self.then = self.then, None
        if then is not None:
            then()


class NextPlans(Generic[PlanOfCall]):
    """Makes the plans of next calls. Threads may share it."""

    def __init__(
        self,
        kept: BoundedCache[PlanOfCall],
        make: Callable[[Key, Any], PlanOfCall | None],
        lock: Lock,
    ) -> None:
        """`kept` has the plans by key. `make` returns the plan for a key and a call's options; None
        where something must be compiled or prepared first. Its caller holds `lock`."""
        self._kept, self._make, self._lock = kept, make, lock

    def watch(self, key: Key, options: Any, plan: PlanOfCall) -> None:
        """Prepares the next call after this new plan's first launch, if it is one that can."""
        followed = getattr(plan, "over_cache", plan)
        if isinstance(followed, Followed):
            followed.then = partial(self._prepare, key, options, followed.growth)

    def _prepare(self, key: Key, options: Any, growth: Growth) -> None:
        expected = growth.after(key)
        if expected is None or not self._lock.acquire(blocking=False):
            return  # another thread plans
        try:
            if self._kept.get(expected) is None:
                plan = self._make(expected, options)
                if plan is not None:
                    self._kept.add(expected, plan)
                    self.watch(expected, options, plan)
        except (CompileError, DriverError, TunefaError):  # the call says why
            pass
        finally:
            self._lock.release()
