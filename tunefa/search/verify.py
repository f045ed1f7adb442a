"""Re-times stored winners instead of searching again: what to run after an upgrade.

Each record of this device races against the kernel's default and its own stored runner-up, with the
gate and the statistics of a search's finals. Seconds, not minutes.
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
    """What became of one record."""

    record: Record
    outcome: Finding
    """`kept`: still the fastest; `swapped`: another is, see `instead`; `failed`: it does not run
    or is wrong; `undecided`: the race was disturbed or lost."""
    why: str
    drift: list[str]
    """What changed since it was measured."""
    instead: Record | None = None
    """The record to store in its place: another config's, or the same one's as it is today."""

    @property
    def regressed(self) -> bool:
        """Whether the stored config is no longer what it was."""
        return self.outcome in ("swapped", "failed")


def verify(
    record: Record,
    case: Case,
    workers: int | None = None,
    objective: Callable[[Mode], MakeObjective] = gpu_objective,
) -> Verified:
    """Races a measured record in its own mode on the device that is there, its own.

    `case` is the record's kernel and workload on that device.
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
    """What a race says of the record: `best` won it, `mine` is the record's own config in it."""
    certificate = best.certificate or {}
    floor, racers = certificate["noise_floor"], certificate["racers"]
    slower = (mine.median_us or 0.0) / best.median_us - 1.0
    lost = best.trial.config != record.config and slower > floor
    why = f"still as fast as any of {racers} (noise floor {floor:.1%})"
    if lost:
        why = f"{slower:.1%} slower than another (noise floor {floor:.1%})"
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
    """(the default, the configs to race against: it and the stored runner-up, if they can run)."""
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
    """Every config compiled, checked and screened, in their order."""
    for config in configs:
        evaluator.submit(config)
    found = [trial for _ in configs if (trial := evaluator.next()) is not None]
    return [next(t for t in found if t.config == config) for config in configs]
