"""A landscape: what was recorded of the configs of one workload on one device.

Any journal of a search is one; `benchmarks/landscape.py` makes those that hold every feasible
config.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tunefa.errors import TunefaError
from tunefa.spec import arch_catalog as archs
from tunefa.spec.target import Target
from tunefa.spec.trial import MODES, Config, Mode, Trial, identity
from tunefa.spec.workload import Workload
from tunefa.store import journal

Key = tuple[str, tuple[object, ...]]
"""A kernel's name, and its config by `trial.identity`."""


@dataclass(frozen=True)
class Landscape:
    """The trials in one journal. Read from a file by `load`."""

    path: Path
    workload: Workload
    target: Target
    provenance: Mapping[str, Mapping[str, Any]]
    """By kernel, what its trials were made with."""
    first: Mapping[Key, Trial]
    """What a search is told of a config: its trial before any race."""
    last: Mapping[Key, Trial] = field(repr=False)
    """What is known of a config in the end: of a finalist, its race."""
    racers: frozenset[Key] = field(repr=False)
    """Those in the last race of each kernel; a search that was continued holds several."""
    mode: Mode | None
    """How its times were measured; None where they come from the model."""

    @property
    def kernels(self) -> list[str]:
        """The names of the kernels that were searched."""
        return list(self.provenance)

    @property
    def measured(self) -> bool:
        """Whether its times come from a device, and not from the model."""
        return self.mode is not None

    def trials(self, kernel: str) -> Iterator[Trial]:
        """What became of a kernel's configs, before any race."""
        return (trial for (name, _), trial in self.first.items() if name == kernel)

    def screened(self, kernel: str, config: Config) -> Trial:
        """What became of a config; refused where the landscape does not hold it."""
        held = self.first.get((kernel, identity(config)))
        if held is None:
            return Trial(config, "refused", f"{self.path.name} does not hold this config")
        return held

    def raced(self, kernel: str, config: Config) -> Trial | None:
        """What a race said of a config; None if it took part in none."""
        key = kernel, identity(config)
        last = self.last.get(key)
        return last if last is not self.first.get(key) else None

    def excess(self, kernel: str) -> dict[tuple[object, ...], float]:
        """By config that is right, how much slower than the best it is: 0.02 is 2 %, 0 the best.

        Those in the last race are compared as it compared them, within rounds: a device drifts over
        a race, and who was dropped early saw only its beginning. For the others there are
        screenings, which the racers' median ratio of race to screening puts on the same scale.
        """
        own = {key[1]: trial for key, trial in self.last.items() if key[0] == kernel}
        screened = {c: self.first[kernel, c].median_us for c, t in own.items() if t.outcome == "ok"}
        times = {config: us for config, us in screened.items() if us is not None}
        ran = {c: own[c].samples_us for c in times if (kernel, c) in self.racers}
        raced = _against_leader({config: samples for config, samples in ran.items() if samples})
        scale = median([by / times[config] for config, by in raced.items()] or [1.0])
        relative = {config: raced.get(config, us * scale) for config, us in times.items()}
        best = min(relative.values(), default=1.0)
        return {config: by / best - 1.0 for config, by in relative.items()}


def _against_leader(
    raced: Mapping[tuple[object, ...], tuple[float, ...]],
) -> dict[tuple[object, ...], float]:
    """Each racer's time over the leader's: the median of the ratios in the rounds it ran."""
    rounds = max(map(len, raced.values()), default=0)
    staying = [samples for samples in raced.values() if len(samples) == rounds]
    if not staying:
        return {}
    leader = min(staying, key=median)
    return {
        config: median(own / best for own, best in zip(samples, leader, strict=False))
        for config, samples in raced.items()
    }


def _racers(order: Sequence[Key]) -> frozenset[Key]:
    """Who is in the last race of each kernel: those that come again, each once and in one go."""
    races: dict[str, set[Key]] = {}
    seen: set[Key] = set()
    over: set[str] = set()
    for key in order:
        kernel = key[0]
        if key not in seen:
            seen.add(key)
            over.add(kernel)
            continue
        if kernel in over or key in races[kernel]:
            races[kernel] = set()
            over.discard(kernel)
        races[kernel].add(key)
    return frozenset[Key]().union(*races.values())


def _mode(header: Mapping[str, Any], trials: Iterable[Trial]) -> Mode | None:
    """How a journal's times were measured; one that does not say is from before there were modes.

    Raises ValueError for a mode that there is not.
    """
    if not any(trial.samples_us for trial in trials):
        return None
    mode: Mode = header.get("mode") or "graph"
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}")
    return mode


def load(path: Path) -> Landscape:
    """The landscape in a journal, compressed or not.

    Raises TunefaError as `journal.read` does, and for one that does not say what was searched.
    """
    header = journal.header(path)
    if not header:
        raise TunefaError(f"{path} has no whole first line: there is nothing to replay")
    first: dict[Key, Trial] = {}
    last: dict[Key, Trial] = {}
    order: list[Key] = []
    for kernel, trial in journal.read(path):
        key = kernel, identity(trial.config)
        first.setdefault(key, trial)
        last[key] = trial
        order.append(key)
    try:
        arch = archs.load(header["arch"])
        provenance = {str(name): dict(made) for name, made in header["provenance"].items()}
        workload = Workload.parse(header["workload"])
        target = Target(arch, arch.device(header["device"]))
        mode = _mode(header, first.values())
    except (TunefaError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise TunefaError(f"{path}:1: does not say what was searched: {error}") from error
    if not first:
        raise TunefaError(f"{path} holds no trials: there is nothing to replay")
    racers = _racers(order)
    return Landscape(path, workload, target, provenance, first, last, racers, mode)
