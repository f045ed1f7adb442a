"""The interface of an engine, which starts the workers of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from tunefa.sweep.plan import Plan
from tunefa.sweep.seat import Seat

Task = Callable[[Seat], str | None]
"""The work of a worker: `tunefa.sweep.start.work`."""


@dataclass(frozen=True)
class Ended:
    """The end of a worker."""

    seat: Seat
    error: str | None = None
    """The reason that it ended before its work did: a lost process, or an exception."""
    is_users: bool = False
    """Whether the error is one that the user can correct: another worker would have it too."""


class Engine(Protocol):
    """Starts workers. A context manager, which ends them all."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *_: object) -> None: ...

    def seats(self, plan: Plan, place: str, study: str) -> list[Seat]:
        """Returns the seats of the workers that it can start.

        Raises TunefaError if there is nothing to work with.
        """

    def start(self, seat: Seat) -> None:
        """Starts a worker."""

    def stop(self) -> None:
        """Ends all workers at once."""

    def ended(self, wait_s: float) -> Sequence[Ended]:
        """Returns the workers that have ended since the last call; waits for one, not longer than
        `wait_s` seconds."""
