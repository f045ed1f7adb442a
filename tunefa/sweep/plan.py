"""The plan of a sweep: the question that all its workers work on, as plain data in a study."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tunefa.spec.target import Target
from tunefa.spec.trial import MODES, Mode
from tunefa.spec.workload import Workload


@dataclass(frozen=True)
class Plan:
    """The question that a sweep answers."""

    weights: Mapping[Workload, float]
    """The workloads. A weight is the seconds that a program spends in one before it is tuned, or
    how much it counts beside the others."""
    targets: tuple[str, ...] = ()
    """The chips to predict for, by their names. None: the GPUs that the workers find, measured."""
    device: str | None = None
    """The only device to measure on; None for every one that a worker finds."""
    kernels: tuple[str, ...] = ()
    """The only kernels to search; none stands for all."""
    mode: Mode | None = None
    """The way launches are timed; None for what suits the op."""
    strategy: str = "auto"
    seed: int = 0

    @property
    def measured(self) -> bool:
        """Whether its times are measured."""
        return not self.targets

    @property
    def digest(self) -> str:
        """Eight hex digits: equal for plans that ask the same, in whatever order."""
        data = self.to_data()
        data["weights"] = sorted(data["weights"].items())
        data["targets"] = sorted(self.targets)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:8]

    def to_data(self) -> dict[str, Any]:
        """Returns plain data for JSON, from which `from_data` makes the plan again."""
        return {
            "weights": {str(workload): weight for workload, weight in self.weights.items()},
            "targets": list(self.targets),
            "device": self.device,
            "kernels": list(self.kernels),
            "mode": self.mode,
            "strategy": self.strategy,
            "seed": self.seed,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Plan:
        """Reads plain data. Raises TunefaError for an unknown workload, and KeyError, TypeError or
        ValueError for what is no plan."""
        mode = data["mode"]
        if mode is not None and mode not in MODES:
            raise ValueError(f"unknown mode {mode!r}")
        weights = {Workload.parse(text): float(each) for text, each in data["weights"].items()}
        return cls(
            weights, tuple(data["targets"]), data["device"], tuple(data["kernels"]), mode,
            data["strategy"], int(data["seed"]),
        )  # fmt: skip


@dataclass(frozen=True)
class Item:
    """One workload of a sweep on one chip."""

    workload: Workload
    target: Target = field(hash=False)
    weight: float

    @property
    def key(self) -> str:
        """Its name in the study: `sm90/NVIDIA H200/fwd_b1_...`."""
        return f"{self.target.arch.name}/{self.target.device.name}/{self.workload}"
