"""What ran a call, and why: what `last_choice()` gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tunefa.spec.workload import Workload
from tunefa.store.lookup import How


@dataclass(frozen=True)
class Chosen:
    """What ran a call of `flash_attention`, and why that."""

    kernel: str
    """A kernel's name, or `pytorch`."""
    config: dict[str, Any]
    """Empty for `pytorch`."""
    how: How | Literal["pytorch"]
    why: str
    """One sentence for people."""
    workload: Workload | None
    """None where the call is none that a kernel could serve."""
