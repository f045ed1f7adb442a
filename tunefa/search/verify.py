"""Times stored winners again, which is quicker than a new search: for after an upgrade.

Each record of this device races against the kernel's default and the runner-up that the record
holds, with the checks and the statistics of a search's race. It takes seconds for each record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tunefa.compile import provenance
from tunefa.errors import TunefaError
from tunefa.measure.measured import gpu_objective
from tunefa.measure.objective import Objective
from tunefa.search.winner import Winner
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Mode, Trial
from tunefa.store.record import Record

Finding = Literal["kept", "swapped", "failed", "undecided"]
MakeObjective = Callable[[Case, int | None], Objective]


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
    """The record to store in its place: of another config, or of the same config as it is today."""

    @property
    def regressed(self) -> bool:
        """Whether the stored config is no longer the fastest, or no longer works."""
        return self.finding in ("swapped", "failed")


def verify(
    record: Record,
    case: Case,
    workers: int | None = None,
    objective: Callable[[Mode], MakeObjective] = gpu_objective,
) -> Verified:
    """Races a measured record again, in its own mode, on the device of this machine.

    It is the device that the record was measured on. `case` is the record's kernel and workload on
    it.
    """
    kernel = case.kernel
    drift = provenance.drift(record, provenance.of(kernel))
    if reason := case.why_not():
        return Verified(record, "failed", f"{kernel.name} does not serve it: {reason}", drift)
    if refusal := case.refusal(record.config):
        return Verified(record, "failed", f"refused: {refusal}", drift)
    default, rivals = _rivals(record, case)
    configs = [record.config, *rivals]
    make = objective(record.mode or "graph")
    with make(case, workers or len(configs)) as evaluator:
        trials = _trials(evaluator, configs)
        mine, others = trials[0], [t for t in trials[1:] if t.outcome == "ok"]
        if mine.outcome != "ok":
            return Verified(record, "failed", f"{mine.outcome}: {mine.reason}", drift)
        raced = evaluator.race([mine, *others], default)
    mine = next(t for t in raced.trials if t.config == record.config)
    if raced.winner is None or raced.certificate is None or mine.outcome != "ok":
        return Verified(record, "failed", f"{mine.outcome}: {mine.reason}", drift)
    if refused := raced.certificate.get("refused"):
        return Verified(record, "undecided", f"not certified: {refused}", drift)
    best = Winner(kernel, raced.winner, raced.certificate, record.mode)
    return _decided(record, best, mine, case.target, drift)


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
    if lost or drift:
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


def _trials(evaluator: Objective, configs: list[Config]) -> list[Trial]:
    """Compiles, checks and screens the configs; returns their trials in the same order."""
    for config in configs:
        evaluator.submit(config)
    found = [trial for _ in configs if (trial := evaluator.next()) is not None]
    return [next(t for t in found if t.config == config) for config in configs]
