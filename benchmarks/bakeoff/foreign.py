"""Search spaces of others: kernels that are not attention, timed by others on their devices.

A space is a cache file of kernel_tuner or a T4 file (JSON, also in gzip) that holds every config of
a search space, as AutoTuningAssociation's benchmark hub has them. tunefa knows nothing about such a
kernel: no model of time, no default, no winner of a near workload. All configs are expected to take
the same time, and stand in random order, as a strategy may take the first of equals.
"""

from __future__ import annotations

import gzip
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.bakeoff.runs import Tally
from tunefa.errors import TunefaError
from tunefa.search.strategy import SearchProblem
from tunefa.spec.space import Parameter
from tunefa.spec.trial import Config, Trial, identity

TIME_KEYS = ("compilation", "runtimes", "validation")
"""The parts of an evaluation's cost, in T4's words: the time of the strategy itself is left out, as
it depends on the machine of the replay."""


@dataclass(frozen=True)
class Entry:
    """The record of one config. All times are in ms."""

    config: Config
    time_ms: float | None
    """The objective: the mean of the runs; None for a config that failed."""
    runs_ms: tuple[float, ...]
    compile_ms: float
    verify_ms: float
    failure: str = ""
    """The class of kernel_tuner's error."""

    @property
    def cost_ms(self) -> float:
        """The time to evaluate the config."""
        return self.compile_ms + self.verify_ms + sum(self.runs_ms)

    @property
    def trial(self) -> Trial:
        """The trial that a strategy is told."""
        if self.time_ms is None:
            return Trial(self.config, "crashed", self.failure)
        return Trial(self.config, "ok", samples_us=(1000 * self.time_ms,))


@dataclass(frozen=True)
class Space:
    """A space in which every config was tried."""

    kernel: str
    device: str
    values: Mapping[str, Sequence[Any]]
    """The values of each parameter, in the sequence of the file; some have one value."""
    entries: Sequence[Entry]

    @property
    def name(self) -> str:
        """`convolution_kernel, NVIDIA GeForce RTX 2080 Ti`."""
        return f"{self.kernel}, {self.device}"

    @cached_property
    def by_identity(self) -> Mapping[tuple[object, ...], Entry]:
        """The entries by the identity of their configs."""
        return {identity(each.config): each for each in self.entries}

    @cached_property
    def excess(self) -> Mapping[tuple[object, ...], float]:
        """The relative excess time of each right config over the best."""
        times = {key: e.time_ms for key, e in self.by_identity.items() if e.time_ms is not None}
        best = min(times.values(), default=1.0)
        return {key: time / best - 1.0 for key, time in times.items()}


@dataclass(frozen=True)
class ForeignCourse:
    """A run's view of a space: the configs in an order of its own."""

    space: Space
    seed: int

    @cached_property
    def problem(self) -> SearchProblem:
        """A problem that nothing is known about."""
        configs = [each.config for each in self.space.entries]
        random.Random(self.seed).shuffle(configs)
        parameters = (Parameter(name, tuple(v), "") for name, v in self.space.values.items())
        equal = [1.0] * len(configs)
        return SearchProblem(tuple(parameters), configs, equal, (), None, self.seed)

    @property
    def excess(self) -> Mapping[tuple[object, ...], float]:
        """The excesses of the space."""
        return self.space.excess

    def trial(self, config: Config) -> Trial:
        """Returns what was recorded of a config."""
        return self.space.by_identity[identity(config)].trial


class TimedTally(Tally):
    """Ends a run when its evaluations have taken a time, whatever it has reached."""

    def __init__(self, course: ForeignCourse, budget_ms: float) -> None:
        super().__init__(course, len(course.space.entries))
        self._space, self._left_ms = course.space, budget_ms

    @property
    def done(self) -> bool:
        """Whether the time is over, or nothing is left to try."""
        return self._left_ms < 0 or self.evaluations >= self._limit

    def evaluate(self, config: Config) -> Trial:
        """Returns the recorded trial of a config, and counts its time if it is a new one."""
        before = self.evaluations
        trial = super().evaluate(config)
        if self.evaluations > before:
            self._left_ms -= self._space.by_identity[identity(config)].cost_ms
        return trial


def read(path: Path) -> Space:
    """Returns the space in a cache file of kernel_tuner, or in a T4 file.

    Raises TunefaError if the file cannot be read, is neither, or holds no config that worked.
    """
    try:
        content = path.read_bytes()
        data = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        space = _of_t4(data, path) if "results" in data else _of_cache(data)
    except OSError as error:
        raise TunefaError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, EOFError) as error:
        raise TunefaError(
            f"{path} is no complete cache file of kernel_tuner and no T4 file: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not space.excess:
        raise TunefaError(f"{path} holds no config with a time")
    return space


def _of_cache(data: Mapping[str, Any]) -> Space:
    names = list(data["tune_params_keys"])
    values = {name: list(data["tune_params"][name]) for name in names}
    entries = [
        _entry(
            {name: each[name] for name in names},
            each["time"],
            each.get("times", ()),
            (each.get("compile_time", 0.0), each.get("verification_time", 0.0)),
        )
        for each in data["cache"].values()
    ]
    return Space(str(data["kernel_name"]), str(data["device_name"]), values, entries)


def _of_t4(data: Mapping[str, Any], path: Path) -> Space:
    """A T4 file's space; its kernel is the file, as it need not name one. Values are sorted."""
    said = data.get("metadata", {})
    ms = 1.0 if said.get("timeunit") == "milliseconds" else 1000.0
    entries = []
    for each in data["results"]:
        times, right = each["times"], each["invalidity"] == "correct"
        measured = {one["name"]: one["value"] for one in each["measurements"]}
        time = measured["time"] if right else each["invalidity"]
        costs = (ms * times["compilation"], ms * times["validation"])
        runs_ms = [ms * one for one in times.get("runtimes", ())]
        entries.append(_entry(each["configuration"], time, runs_ms, costs))
    values: dict[str, dict[Any, None]] = {}
    for entry in entries:
        for name, value in entry.config.items():
            values.setdefault(name, {})[value] = None
    ranked = {
        name: sorted(those, key=lambda v: (str(type(v)), v)) for name, those in values.items()
    }
    kernel = str(said.get("kernel", path.name.partition(".")[0]))
    return Space(kernel, str(said.get("device", "T4")), ranked, entries)


def _entry(
    config: Config, time: Any, runs_ms: Sequence[float], costs_ms: tuple[float, float]
) -> Entry:
    """An entry; `time` is in ms, or says how the config failed, and `costs_ms` are compiling and
    verifying."""
    failed = isinstance(time, str) or not math.isfinite(time)
    runs = tuple(map(float, runs_ms))
    compile_ms, verify_ms = map(float, costs_ms)
    found = None if failed else float(time)
    return Entry(dict(config), found, runs, compile_ms, verify_ms, str(time) if failed else "")
