"""The place of worker processes: the variables and the cores that they run with."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Place:
    """The variables and the cores that workers run with."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that they have beside those of this process."""
    cores: frozenset[int] = frozenset()
    """The only cores that they run on, where the system knows such a choice; none stands for all
    that this process has."""

    def enter(self) -> None:
        """Moves this thread to these cores; the processes that it starts begin there."""
        if self.cores and hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):  # the cores are not this process's to choose
                os.sched_setaffinity(0, self.cores)
