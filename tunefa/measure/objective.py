"""The interface of an objective, which turns configs into trials.

There are objectives that predict times without a device, that measure on the device of this
machine, and that replay a recorded search. The search loop does not know which one it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from tunefa.compile.pool import Rank
from tunefa.compile.workers import Workers
from tunefa.spec.trial import Config, Trial


@dataclass(frozen=True)
class Raced:
    """The result of a race between the best trials of one kernel, its finalists."""

    trials: list[Trial]
    """All finalists, with the outcome `wrong` where a check failed."""
    winner: Trial | None = None
    certificate: dict[str, Any] | None = None
    """The statistics behind the claim that the winner is the fastest; None without a race."""


class Objective(Protocol):
    """Evaluates configs of one kernel for one workload. A context manager."""

    width: int
    """The number of configs that should be in progress at once."""
    reserve_s: float
    """Seconds that `race` rarely exceeds."""

    def __enter__(self) -> Objective: ...

    def __exit__(self, *_: object) -> None: ...

    def prepare(self, config: Config, compilers: Workers) -> None:
        """Starts to compile a config before its turn, in processes that others share.

        It is in progress only when it is submitted, which may be never.
        """

    def is_prepared(self, config: Config) -> bool:
        """Returns whether a config that was prepared needs no compiler any more."""

    def submit(self, config: Config, rank: Rank = Rank.NOW) -> None:
        """Starts to evaluate a config; `rank` says when compilers begin with it."""

    def next(self, wait_s: float = math.inf) -> Trial | None:
        """Returns the next trial, None after `wait_s` seconds. A config must be in progress."""

    def is_ready(self, wait_s: float) -> bool:
        """Returns whether `next` needs to wait for no compiler; waits up to `wait_s` seconds."""

    def settle(self) -> Trial | None:
        """Waits for what runs on the device ahead of `next`; returns its first trial, if there is
        one. Nothing of this objective runs on the device once it has returned None.
        """

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """Evaluates finalists once more, with more care, until `time.monotonic` is `until`.

        Configs in progress are abandoned, so that nothing else runs meanwhile. Nothing may be
        submitted afterwards.
        """
