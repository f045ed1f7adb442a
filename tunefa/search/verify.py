"""Times stored winners again, which is quicker than a new search: for after an upgrade.

Each record of this device races against the kernel's default and the runner-up that the record
holds, with the checks and the statistics of a search's race. All records share one pool of
compilers and one process on the device, and the compilers work ahead of the races.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from tunefa.compile import languages, provenance, serving
from tunefa.compile.pool import compilers
from tunefa.compile.workers import Workers
from tunefa.errors import TunefaError
from tunefa.measure.measured import gpu_objective
from tunefa.measure.objective import Objective
from tunefa.search.budget import Budget
from tunefa.search.winner import Winner
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Mode, Trial
from tunefa.store.record import Record

FREE_CORES = 2
"""Cores that are left to the process on the device while compilers run: it launches and times."""

Finding = Literal["kept", "swapped", "failed", "undecided"]


class CompilingObjective(Objective, Protocol):
    """An objective that says whether its configs are compiled."""

    def is_compiled(self) -> bool:
        """Whether every config that was submitted and not returned yet is compiled."""


MakeObjective = Callable[[Case, int | None, Workers | None, Workers | None], CompilingObjective]
"""Makes an objective from a case, a number of workers, the process on the device, and compilers."""


@dataclass(frozen=True)
class Verified:
    """The result of verifying one record."""

    record: Record
    finding: Finding
    """`kept`: the config is still the fastest. `swapped`: another one is, see `instead`. `failed`:
    the config does not run or is wrong. `undecided`: the race was disturbed or lost."""
    why: str
    drift: list[str]
    """The versions that have changed since the record was measured."""
    instead: Record | None = None
    """The record to store in its place: of another config, of the same config as it is today, or
    itself with the note that it does not work."""

    @property
    def regressed(self) -> bool:
        """Whether the stored config is no longer the fastest, or no longer works."""
        return self.finding in ("swapped", "failed")


@dataclass(frozen=True, eq=False)
class _Entry:
    """A record that is to be verified, and what it races against."""

    record: Record
    case: Case
    drift: list[str]
    objective: CompilingObjective
    default: Config | None
    configs: list[Config]
    """The record's own config, then its rivals."""
    submitted: list[Config] = field(default_factory=list)
    sharing: list[_Entry] = field(default_factory=list)
    """The entries that compile binaries which this one needs too."""

    def is_compiled(self) -> bool:
        """Whether its binaries are in the cache."""
        return all(each.objective.is_compiled() for each in (self, *self.sharing))

    def submit(self, configs: Sequence[Config]) -> None:
        """Starts to compile configs; each of them once."""
        for config in configs:
            if config not in self.submitted:
                self.submitted.append(config)
                self.objective.submit(config)


def verify(
    records: Sequence[Record],
    target: Target,
    budget: Budget | None = None,
    workers: int | None = None,
    objective: Callable[[Mode], MakeObjective] = gpu_objective,
) -> Iterator[Verified]:
    """Races measured records again, each in its own mode, on the device of this machine.

    `target` is the device that all of them were measured on. Yields what was found, until the
    budget's seconds are over or its number of records is done; without a budget, for all. A budget
    takes the records that are most in doubt, see `most_in_doubt`. A record that is compiled does
    not wait for one that is not. `workers` is the number of compilers, by
    default one for each core but `FREE_CORES`.
    """
    budget = budget or Budget()
    until = budget.deadline()
    ranked = most_in_doubt(records)[: budget.trials]
    count = workers or max(1, (os.cpu_count() or 1) - FREE_CORES)
    with compilers(count) as shared, Workers(1) as process, contextlib.ExitStack() as stack:

        def make(case: Case, mode: Mode) -> CompilingObjective:
            made = objective(mode)(case, None, process, shared)
            stack.enter_context(made)
            return made

        now = functools.cache(_versions)
        entries: list[_Entry] = []
        for record in ranked:
            found = _prepared(record, target, make, now)
            if isinstance(found, Verified):
                yield found
            else:
                entries.append(found)
        if math.isinf(until):  # all are verified: the races begin soonest where little is compiled
            entries.sort(key=lambda entry: len(entry.configs))
        _compile_ahead(entries)
        while entries and time.monotonic() < until:
            entry = next((each for each in entries if each.is_compiled()), entries[0])
            entries.remove(entry)
            if (raced := _raced(entry, until)) is not None:
                yield raced


def most_in_doubt(records: Sequence[Record]) -> list[Record]:
    """Returns the records, those first that are likeliest to have lost their place.

    First those whose kernel's source changed, then by the number of versions that changed, then by
    the lead over the runner-up, the smallest first.
    """
    changes = dict(zip(map(id, records), provenance.drifts(records), strict=True))

    def doubt(record: Record) -> tuple[float, ...]:
        drift = changes[id(record)]
        source = any("source" in change for change in drift)
        runner_up = (record.certificate or {}).get("runner_up") or {}
        lead = (runner_up.get("slower_by") or {}).get("low", math.inf)
        return -source, -len(drift), lead

    return sorted(records, key=doubt)


def _prepared(
    record: Record,
    target: Target,
    make: Callable[[Case, Mode], CompilingObjective],
    now: Callable[[str], dict[str, Any]],
) -> _Entry | Verified:
    """The record with its rivals and its objective, or why it fails already."""
    try:
        kernel = kernels.load(record.kernel)
    except TunefaError as error:
        return Verified(record, "failed", str(error), [])
    case = Case(kernel, record.workload, target)
    drift = provenance.drift(record, now(kernel.name))
    if reason := case.why_not():
        return Verified(record, "failed", f"{kernel.name} does not serve it: {reason}", drift)
    if refusal := case.refusal(record.config):
        return Verified(record, "failed", f"refused: {refusal}", drift)
    default, rivals = _rivals(record, case)
    made = make(case, record.mode or "graph")
    return _Entry(record, case, drift, made, default, [record.config, *rivals])


def _versions(kernel: str) -> dict[str, Any]:
    """The versions here of what influences a kernel. Compilers are asked for theirs, which is slow.

    Raises TunefaError if the kernel cannot be loaded.
    """
    return provenance.of(kernels.load(kernel))


def _compile_ahead(entries: Sequence[_Entry]) -> None:
    """Starts to compile every distinct binary, in the order of the entries.

    Lengths often share a binary. The second config that needs it is submitted when its turn comes,
    and then finds it in the cache.
    """
    first: dict[Hashable, _Entry] = {}
    for entry in entries:
        language = languages.load(entry.case.kernel.language)
        for config in entry.configs:
            key = language.binary_key(entry.case, config, True)
            if key not in first:
                first[key] = entry
                entry.submit([config])
            elif first[key] is not entry:
                entry.sharing.append(first[key])


def _raced(entry: _Entry, until: float) -> Verified | None:
    """The finding for one record; None if the time is over before its configs are compiled."""
    record, evaluator, drift = entry.record, entry.objective, entry.drift
    entry.submit(entry.configs)
    trials = _trials(evaluator, entry.configs, until)
    if trials is None:
        return None
    mine, others = trials[0], [t for t in trials[1:] if t.outcome == "ok"]
    if mine.outcome != "ok":
        return _failed(entry, mine)
    raced = evaluator.race([mine, *others], entry.default, until)
    mine = next(t for t in raced.trials if t.config == record.config)
    if raced.winner is None or raced.certificate is None or mine.outcome != "ok":
        return _failed(entry, mine)
    if refused := raced.certificate.get("refused"):
        return Verified(record, "undecided", f"not certified: {refused}", drift)
    best = Winner(entry.case.kernel, raced.winner, raced.certificate, record.mode)
    return _decided(record, best, mine, entry.case.target, drift)


def _failed(entry: _Entry, mine: Trial) -> Verified:
    """The finding for a record whose config does not run or is wrong.

    If that is due to its code, it is noted in the record, which then no longer serves here.
    """
    why = f"{mine.outcome}: {mine.reason}"
    is_of_code = mine.outcome in ("compile_failed", "crashed", "wrong")
    noted = serving.failed(entry.record, entry.case.kernel, why) if is_of_code else None
    return Verified(entry.record, "failed", why, entry.drift, noted)


def _decided(
    record: Record, best: Winner, mine: Trial, target: Target, drift: list[str]
) -> Verified:
    """The finding of a race that `best` has won; `mine` is the trial of the record's own config."""
    certificate = best.certificate or {}
    floor, racers = certificate["noise_floor"], certificate["racers"]
    slower = (mine.median_us or 0.0) / best.median_us - 1.0
    lost = best.trial.config != record.config and slower > floor
    why = f"still the fastest of {racers}, within the noise floor of {floor:.1%}"
    if lost:
        why = f"{slower:.1%} slower than another config (noise floor {floor:.1%})"
    elif best.trial.config != record.config:
        second = {"config": dict(best.trial.config)}
        claims = {"decision": why, "gain_over_default": None, "runner_up": second}
        best = replace(best, trial=mine, certificate=certificate | claims)
    instead = None
    if lost or drift or serving.FAILED in record.provenance:
        notes = {"verified": record.provenance["date"], "trials": racers}
        instead = best.record(record.workload, target.arch, target.device.name, notes)
    return Verified(record, "swapped" if lost else "kept", why, drift, instead)


def _rivals(record: Record, case: Case) -> tuple[Config | None, list[Config]]:
    """Returns the default, and the rivals: the default and the stored runner-up."""
    default: Config | None = None
    rivals: list[Config] = []
    with contextlib.suppress(TunefaError):
        default = case.default()
        rivals.append(default)
    second = (record.certificate or {}).get("runner_up")
    if second and case.refusal(second["config"]) is None:
        rivals.append(second["config"])
    return default, [c for i, c in enumerate(rivals) if c not in [record.config, *rivals[:i]]]


def _trials(evaluator: Objective, configs: Sequence[Config], until: float) -> list[Trial] | None:
    """Checks and screens compiled configs; returns their trials in the same order.

    Returns None if `time.monotonic` is `until` before all of them are done.
    """
    found: list[Trial] = []
    for _ in configs:
        trial = evaluator.next(until - time.monotonic())
        if trial is None:
            return None
        found.append(trial)
    return [next(t for t in found if t.config == config) for config in configs]
