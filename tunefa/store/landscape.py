"""A landscape: the recorded trials of the configs of one workload on one device.

It is read from the journal of any search. `benchmarks/landscape.py` writes journals with every
feasible config. A search times each config once (it is screened); then it times the best configs
again, in rounds of one launch each (the race of the finalists, see `tunefa.measure.race`).
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
"""A kernel's name, and `trial.identity` of a config."""


@dataclass(frozen=True)
class Landscape:
    """The trials in one journal. `load` reads it from a file."""

    path: Path
    workload: Workload
    target: Target
    provenance: Mapping[str, Mapping[str, Any]]
    """By kernel, the versions and hashes of what the trials were made with."""
    first: Mapping[Key, Trial]
    """The first trial of each config: its screening, before any race."""
    last: Mapping[Key, Trial] = field(repr=False)
    """The last trial of each config: for a finalist, its race."""
    racers: frozenset[Key] = field(repr=False)
    """The configs in the last race of each kernel. A continued search has several races."""
    mode: Mode | None
    """The way its times were measured; None if they come from a cost model."""
    is_replay: bool = False
    """Whether its search took the times of another journal."""

    @property
    def kernels(self) -> list[str]:
        """The names of the kernels that were searched."""
        return list(self.provenance)

    @property
    def measured(self) -> bool:
        """Whether its times come from a device, not from a cost model."""
        return self.mode is not None

    def trials(self, kernel: str) -> Iterator[Trial]:
        """Returns the first trials of a kernel's configs, before any race."""
        return (trial for (name, _), trial in self.first.items() if name == kernel)

    def screened(self, kernel: str, config: Config) -> Trial:
        """Returns the first trial of a config; a refused trial if the landscape has none."""
        held = self.first.get((kernel, identity(config)))
        if held is None:
            return Trial(config, "refused", f"{self.path.name} does not hold this config")
        return held

    def raced(self, kernel: str, config: Config) -> Trial | None:
        """Returns the trial of a config in a race; None if it was in no race."""
        key = kernel, identity(config)
        last = self.last.get(key)
        return last if last is not self.first.get(key) else None

    def times_us(self, kernel: str) -> dict[tuple[object, ...], float]:
        """Returns the time of each correct config in us, as if each had been screened only.

        Configs in the last race are compared with its leader round by round, because a device's
        clocks drift during a race, and a config that was dropped early ran only at its beginning.
        The other configs have screened times only. The median of (time in the race, relative to the
        leader) / (screened time) over the configs in the race is the scale of the two.
        """
        relative, scale = self._relative(kernel)
        return {config: by / scale for config, by in relative.items()}

    def excess(self, kernel: str) -> dict[tuple[object, ...], float]:
        """Returns how much slower each correct config is than the best: 0.02 is 2 %, the best is 0.

        The times are those of `times_us`.
        """
        relative, _ = self._relative(kernel)
        best = min(relative.values(), default=1.0)
        return {config: by / best - 1.0 for config, by in relative.items()}

    def _relative(self, kernel: str) -> tuple[dict[tuple[object, ...], float], float]:
        """Returns each correct config's time relative to the race's leader, and that of 1 us."""
        own = {key[1]: trial for key, trial in self.last.items() if key[0] == kernel}
        screened = {c: self.first[kernel, c].median_us for c, t in own.items() if t.outcome == "ok"}
        times = {config: us for config, us in screened.items() if us is not None}
        ran = {c: own[c].samples_us for c in times if (kernel, c) in self.racers}
        raced = _against_leader({config: samples for config, samples in ran.items() if samples})
        scale = median([by / times[config] for config, by in raced.items()] or [1.0])
        return {config: raced.get(config, us * scale) for config, us in times.items()}, scale


def _against_leader(
    raced: Mapping[tuple[object, ...], tuple[float, ...]],
) -> dict[tuple[object, ...], float]:
    """Returns each config's time relative to the leader's: the median ratio over its rounds."""
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
    """Returns the configs in the last race of each kernel.

    `order` is the order of the journal. In a race, configs of a kernel that had a trial before come
    again, each once, without a new config between them.
    """
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
    """Returns how a journal's times were measured; None if nothing was measured.

    Journals without a mode were written before there were modes, when only graphs were timed.
    Raises ValueError if the mode is unknown.
    """
    if not any(trial.samples_us for trial in trials):
        return None
    mode: Mode = header.get("mode") or "graph"
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}")
    return mode


def load(path: Path) -> Landscape:
    """Returns the landscape in a journal, which may be compressed.

    Raises TunefaError where `journal.read` does, and if the header does not say what was searched.
    """
    header = journal.header(path)
    if not header:
        raise TunefaError(f"{path} has no complete first line: there is nothing to replay")
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
    is_replay = header.get("objective") == "replayed"
    return Landscape(path, workload, target, provenance, first, last, racers, mode, is_replay)
