"""The trials that a model of time learns from: those of journals and recorded landscapes.

A trial belongs here if a GPU ran it with the machine code that its kernel has today. Failures are
rows, too. A row of a config that was raced has the time of the race, scaled to screened times (see
`Landscape.times_us`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tunefa.errors import TunefaError
from tunefa.spec import kernel as kernels
from tunefa.spec.arch import GpuArch
from tunefa.spec.target import Case
from tunefa.spec.trial import Trial, identity
from tunefa.store import journal, landscape
from tunefa.store.landscape import Landscape
from tunefa.store.source_hashes import same_code

EAGER_LEAST_US = 50.0
"""In eager mode a shorter time may be the host's. A call takes the host 15 us (docs/benchmarks.md);
slower hosts take up to three times as long."""
_SUFFIXES = ("*.jsonl", "*.jsonl.xz")


@dataclass(frozen=True)
class Row:
    """One config, and the time that it took on a device."""

    case: Case
    trial: Trial
    time_us: float | None
    """None if the trial failed."""


Group = tuple[str, str]
"""The names of a kernel and of an arch, to which one model belongs."""


@dataclass(frozen=True)
class TrainingRows:
    """Rows, and what was left out."""

    rows: tuple[Row, ...]
    left_out: Mapping[str, int]
    """By reason, the number of trials that are no rows."""
    unread: tuple[str, ...] = ()
    """The reasons that journals could not be read, a sentence each."""

    def groups(self) -> dict[Group, list[Row]]:
        """Returns the rows of each kernel and arch, sorted by these names."""
        found: dict[Group, list[Row]] = {}
        for row in sorted(self.rows, key=group):
            found.setdefault(group(row), []).append(row)
        return found


def group(row: Row) -> Group:
    """Returns the names of the row's kernel and arch."""
    return row.case.kernel.name, row.case.arch.name


def place(row: Row) -> tuple[str, str]:
    """Returns the names of the row's device and workload."""
    return row.case.device.name, str(row.case.workload)


def files(paths: Iterable[Path]) -> list[Path]:
    """Returns the journals among files and in folders, subfolders included, each once.

    Raises TunefaError for a path that does not exist, and for a folder without a journal.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted(file for pattern in _SUFFIXES for file in path.rglob(pattern))
            if not inside:
                raise TunefaError(f"{path} holds no journal (*.jsonl or *.jsonl.xz)")
            found |= dict.fromkeys(inside)
        elif path.exists():
            found[path] = None
        else:
            raise TunefaError(f"{path} does not exist: name a journal, or a folder of journals")
    return list(found)


def read(paths: Sequence[Path]) -> TrainingRows:
    """Returns the rows of the journals of measured searches.

    Of several trials of a config for one workload and device, the newest in graph mode counts, else
    the newest in mode step, else the newest. Raises TunefaError for a journal that cannot be read.
    """
    return _collected(paths, lambda path: [landscape.load(path)])


def of_user() -> TrainingRows:
    """Returns the rows of this user's journals. Those that cannot be read are `unread`."""
    unread: list[str] = []

    def loaded(path: Path) -> list[Landscape]:
        try:
            return [landscape.load(path)]
        except TunefaError as error:
            unread.append(str(error))
            return []

    found = _collected(journal.paths(), loaded)
    return TrainingRows(found.rows, found.left_out, tuple(unread))


def _collected(paths: Sequence[Path], loaded: Callable[[Path], list[Landscape]]) -> TrainingRows:
    every = [each for path in paths for each in loaded(path)]
    modes = "eager", "step", "graph"
    every.sort(key=lambda held: (modes.index(held.mode or "eager"), _date(held)), reverse=True)
    rows: dict[tuple[object, ...], Row] = {}
    left_out: Counter[str] = Counter()
    for held in every:
        for kernel in held.kernels:
            if why := _why_not(held, kernel):
                left_out[why] += sum(1 for _ in held.trials(kernel))
                continue
            for row in _rows(held, kernel, left_out):
                key = group(row), place(row), identity(row.trial.config)
                if key in rows:
                    left_out["another trial of the config on this device is kept"] += 1
                rows.setdefault(key, row)
    return TrainingRows(tuple(rows.values()), dict(left_out))


def _date(held: Landscape) -> str:
    return max((str(made.get("date", "")) for made in held.provenance.values()), default="")


def _why_not(held: Landscape, kernel: str) -> str | None:
    """Returns why no trial of a kernel in a journal is a row; None if trials can be rows."""
    if not held.measured:
        return "nothing was measured"
    if held.is_replay:
        return "the search replayed another journal"
    if not isinstance(held.target.arch, GpuArch):
        return "not measured on a GPU"
    if kernel not in kernels.names():
        return f"there is no kernel {kernel} any more"
    if held.workload.op != "fwd":
        op = held.workload.op
        return f"only times of attention's forward pass are learned from, and these are of {op}"
    hashed = str(held.provenance[kernel].get("source_hash"))
    if same_code(kernel, hashed) != kernels.load(kernel).source_hash:
        return f"the source of {kernel} has changed since"
    return None


def _rows(held: Landscape, kernel: str, left_out: Counter[str]) -> Iterator[Row]:
    case = Case(kernels.load(kernel), held.workload, held.target)
    times = held.times_us(kernel)
    for trial in held.trials(kernel):
        time_us = times.get(identity(trial.config))
        if case.kernel.space.misfit(trial.config) or case.refusal(trial.config):
            left_out[f"the search space of {kernel} refuses the config today"] += 1
        elif time_us is not None and held.mode == "eager" and time_us < EAGER_LEAST_US:
            left_out[f"under {EAGER_LEAST_US:.0f} us in eager mode: it may be the host's time"] += 1
        else:
            yield Row(case, trial, time_us)
