"""What happened to one config: the outcome as data, never as an exception."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Config = Mapping[str, Any]
"""One choice for every parameter of a space, in the order of its file."""


def identity(config: Config) -> tuple[object, ...]:
    """What makes two configs of one space the same: their values, whatever order they are in."""
    return tuple(sorted(config.items()))


Outcome = Literal["ok", "refused", "compile_failed", "timeout", "crashed", "wrong", "unstable"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)

Mode = Literal["eager", "graph"]
"""How a launch is made when it is timed, see `tunefa.measure.timing`."""
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class MemoryPlan:
    """How the compiler for an NPU laid out one config: bytes are by memory, `ub`, `l1`, `l0c`."""

    excess: Mapping[str, float] = field(default_factory=dict, hash=False)
    """(required - available) / available: above 0 it does not fit, below it does."""
    changed: Mapping[str, bool] = field(default_factory=dict, hash=False)
    """Flags that the compiler set otherwise by itself, so that it fits: what was compiled."""
    code: str | None = None
    """Names the program that came out: equal names, equal programs."""


@dataclass(frozen=True)
class Resources:
    """What the compiler says one program needs; None where it did not say."""

    smem_bytes: int | None = None
    registers: int | None = None
    """Registers per thread."""
    spill_bytes: int | None = None
    """Bytes of local memory stored by spill instructions, per thread."""
    stack_bytes: int | None = None
    """Stack frame per thread."""
    ub_bytes: int | None = None
    """Of an NPU: the highest address in the UB of a vector core, or what an overflow asks for."""
    l1_bytes: int | None = None
    l0c_bytes: int | None = None
    workspace_bytes: int | None = None
    """Of an NPU: global memory that each core wants."""
    planned: MemoryPlan | None = None
    """Of an NPU; kept in journals, not in records."""


@dataclass(frozen=True)
class Trial:
    """One config on its way through compile, check and time."""

    config: Config
    outcome: Outcome
    reason: str = ""
    """Why it is not `ok`, in words a user can act on."""
    resources: Resources | None = None
    predicted_us: float | None = None
    samples_us: tuple[float, ...] = field(default=())
    """Measured latencies, one per launch."""
    error: float | None = None
    """Relative error against the reference, ||out - ref|| / ||ref||."""
    compile_s: float | None = None

    @property
    def median_us(self) -> float | None:
        """The figure that ranks this trial: the measured median, else the prediction."""
        if not self.samples_us:
            return self.predicted_us
        ordered = sorted(self.samples_us)
        middle = len(ordered) // 2
        if len(ordered) % 2:
            return ordered[middle]
        return (ordered[middle - 1] + ordered[middle]) / 2

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the journal."""
        return {**asdict(self), "config": dict(self.config), "samples_us": list(self.samples_us)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Trial:
        """The trial that `to_dict` wrote. Raises ValueError, TypeError or KeyError if none did."""
        if data["outcome"] not in OUTCOMES:
            raise ValueError(f"unknown outcome {data['outcome']!r}")
        resources = data.get("resources")
        return cls(
            **{
                **data,
                "resources": _resources(resources) if resources else None,
                "samples_us": tuple(data.get("samples_us", ())),
            }
        )


def _resources(data: Mapping[str, Any]) -> Resources:
    planned = data.get("planned")
    return Resources(**{**data, "planned": MemoryPlan(**planned) if planned else None})


def time_us(trial: Trial) -> float:
    """What trials are ordered by: one without a time comes last."""
    return trial.median_us or math.inf
