"""Objectives say what becomes of a config: predicted without a device, measured on the one there,
replayed from what was recorded. The search loop does not know which one it drives."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from tunefa.spec.trial import Config, Trial


@dataclass(frozen=True)
class Raced:
    """What became of finalists."""

    trials: list[Trial]
    """All of them; ones found wrong as such."""
    winner: Trial | None = None
    certificate: dict[str, Any] | None = None
    """What bounds the claim that the winner is the fastest; None when nothing does."""


class Objective(Protocol):
    """Evaluates configs of one kernel for one workload. A context manager."""

    width: int
    """Configs to keep under way."""
    reserve_s: float
    """Seconds that `race` usually takes at most."""

    def __enter__(self) -> Objective: ...

    def __exit__(self, *_: object) -> None: ...

    def submit(self, config: Config) -> None:
        """Starts on a config."""

    def next(self, wait_s: float = math.inf) -> Trial | None:
        """Waits for the next trial, None after `wait_s` seconds; there must be one under way."""

    def race(
        self, trials: Iterable[Trial], default: Config | None, until: float = math.inf
    ) -> Raced:
        """Finalists again, more carefully, until `time.monotonic` is `until`.

        What is under way is abandoned: nothing runs beside it, and nothing may be submitted after.
        """
