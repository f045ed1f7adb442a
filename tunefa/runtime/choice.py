"""The result of `last_choice()`: what ran a call, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tunefa.spec.workload import Workload
from tunefa.store.lookup import How


@dataclass(frozen=True)
class Chosen:
    """The kernel and config that ran a call of `flash_attention`, and why they were chosen."""

    kernel: str
    """A kernel's name, or `pytorch`."""
    config: dict[str, Any]
    """Empty for `pytorch`."""
    how: How | Literal["pytorch"]
    why: str
    """One sentence for people."""
    workload: Workload | None
    """None where no kernel could serve the call."""
