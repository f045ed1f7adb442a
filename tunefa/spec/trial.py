"""Trials: what happened to one config. A failure is data, not an exception."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Config = Mapping[str, Any]
"""A value for each parameter of a space, in the order of its file."""


def identity(config: Config) -> tuple[object, ...]:
    """Returns a key that is equal for configs with equal values, in any order of parameters."""
    return tuple(sorted(config.items()))


Outcome = Literal["ok", "refused", "compile_failed", "timeout", "crashed", "wrong", "unstable"]
OUTCOMES: tuple[str, ...] = get_args(Outcome)
"""`refused`: a rule of the space refuses the config. `compile_failed`, `timeout`, `crashed`: the
compiler or the launch failed. `wrong`: the output is not the reference's. `unstable`: the output
changes from launch to launch."""

Mode = Literal["eager", "graph", "step"]
"""The way launches are timed. `eager`: called from Python, as a program does. `graph`: replayed in
a CUDA graph, so that only the device's time counts. `step`: what it adds to the replay of a graph
in which other kernels stand before and behind it. See `tunefa.measure.timing`."""
MODES: tuple[Mode, ...] = get_args(Mode)


@dataclass(frozen=True)
class MemoryPlan:
    """The compiler's plan for the memories of an NPU, which are named `ub`, `l1` and `l0c`."""

    excess: Mapping[str, float] = field(default_factory=dict, hash=False)
    """By memory, (required - available) / available. If it is above 0, the config does not fit."""
    changed: Mapping[str, bool] = field(default_factory=dict, hash=False)
    """Compiler flags that the compiler itself changed so that the config fits, and their values."""


@dataclass(frozen=True)
class Resources:
    """The resources that one CTA (on NPUs, one core) needs, as the compiler reports them.

    None means that the compiler does not report it.
    """

    smem_bytes: int | None = None
    registers: int | None = None
    """Registers per thread."""
    spill_bytes: int | None = None
    """Bytes of local memory stored by spill instructions, per thread."""
    stack_bytes: int | None = None
    """Stack frame per thread."""
    ub_bytes: int | None = None
    """NPUs only: the highest address used in a vector core's UB, or what an overflow requires."""
    l1_bytes: int | None = None
    l0c_bytes: int | None = None
    workspace_bytes: int | None = None
    """NPUs only: global memory for each core."""
    planned: MemoryPlan | None = None
    """NPUs only; kept in journals, not in records."""
    code: str | None = None
    """A hash of the compiled program, with what a launch needs of the compiler (threads, sizes of
    copies): equal hashes mean equal programs. Kept in journals, not in records."""


@dataclass(frozen=True)
class Trial:
    """One config, and how far it came: compiled, checked, timed."""

    config: Config
    outcome: Outcome
    reason: str = ""
    """The reason that the outcome is not `ok`, for users."""
    resources: Resources | None = None
    predicted_us: float | None = None
    samples_us: tuple[float, ...] = field(default=())
    """Measured latencies, one for each launch."""
    error: float | None = None
    """Relative error against the reference, ||out - ref|| / ||ref||."""
    compile_s: float | None = None
    predicted_sd: float | None = None
    """The standard deviation of log(measured time / `predicted_us`)."""

    @property
    def median_us(self) -> float | None:
        """The median of the measured latencies; without any, the predicted latency."""
        if not self.samples_us:
            return self.predicted_us
        return statistics.median(self.samples_us)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for the journal; `tunefa.store.trial_data` reads it."""
        return {**asdict(self), "config": dict(self.config), "samples_us": list(self.samples_us)}


def time_us(trial: Trial) -> float:
    """Returns a sort key for trials: the median; infinity for a trial without a time."""
    return trial.median_us or math.inf
