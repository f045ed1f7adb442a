"""The place of a worker in a sweep, and the study's notes about workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunefa.sweep.cores import Share

ASIDE = "aside: "
"""The beginning of the study's notes about GPUs that were put aside."""
REFUSED = "refused: "
"""The beginning of its notes about workloads that no kernel serves on a chip."""


@dataclass(frozen=True)
class Seat:
    """The sweep that a worker takes part in, and its device."""

    place: str
    """The address of the study's storage."""
    study: str
    """The study's name."""
    name: str
    """The name of its device for people: `GPU 0` or `cores`."""
    share: Share = field(default_factory=Share)
    environment: Mapping[str, str] = field(default_factory=dict)
    """The variables of its process, such as CUDA_VISIBLE_DEVICES."""
    measured: bool = False
    """Whether it times configs on its device."""
