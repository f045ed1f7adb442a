"""Re-times stored winners instead of searching again: what to run after an upgrade.

Each record of this device races against the kernel's default and its own stored runner-up, with the
gate and the statistics of a search's finals. Seconds, not minutes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from tunefa import provenance
from tunefa.arch import Arch, Device
from tunefa.errors import TunefaError
from tunefa.evaluate import Objective
from tunefa.kernel import Kernel
from tunefa.measured import timed
from tunefa.record import Record
from tunefa.trial import Config, Mode, Trial
from tunefa.winner import Winner
from tunefa.workload import Workload

Outcome = Literal["kept", "swapped", "failed", "undecided"]
MakeObjective = Callable[[Kernel, Workload, Arch, Device, int | None], Objective]


@dataclass(frozen=True)
class Verified:
    """What became of one record."""

    record: Record
    outcome: Outcome
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
    kernel: Kernel,
    chip: tuple[Arch, Device],
    workers: int | None = None,
    objective: Callable[[Mode], MakeObjective] = timed,
) -> Verified:
    """Races a measured record in its own mode on the device that is there, its own."""
    arch, device = chip
    workload, drift = record.workload, provenance.drift(record, provenance.of(kernel))
    if reason := kernel.why_not(workload, arch):
        return Verified(record, "failed", f"{kernel.name} does not serve it: {reason}", drift)
    if refusal := kernel.refusal(record.config, workload, arch):
        return Verified(record, "failed", f"refused: {refusal}", drift)
    default, rivals = _rivals(record, kernel, arch)
    configs = [record.config, *rivals]
    make = objective(record.mode or "graph")
    with make(kernel, workload, arch, device, workers or len(configs)) as evaluator:
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
    return _decided(record, best, mine, chip, drift)


def _decided(
    record: Record, best: Winner, mine: Trial, chip: tuple[Arch, Device], drift: list[str]
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
        arch, device = chip
        notes = {"verified": record.provenance["date"], "trials": racers}
        instead = best.record(record.workload, arch, device.name, notes)
    return Verified(record, "swapped" if lost else "kept", why, drift, instead)


def _rivals(record: Record, kernel: Kernel, arch: Arch) -> tuple[Config | None, list[Config]]:
    """(the default, the configs to race against: it and the stored runner-up, if they can run)."""
    default: Config | None = None
    rivals: list[Config] = []
    with contextlib.suppress(TunefaError):
        default = kernel.default(record.workload, arch)
        rivals.append(default)
    second = (record.certificate or {}).get("runner_up")
    if second and kernel.refusal(second["config"], record.workload, arch) is None:
        rivals.append(second["config"])
    return default, [c for i, c in enumerate(rivals) if c not in [record.config, *rivals[:i]]]


def _trials(evaluator: Objective, configs: list[Config]) -> list[Trial]:
    """Every config compiled, checked and screened, in their order."""
    for config in configs:
        evaluator.submit(config)
    found = [trial for _ in configs if (trial := evaluator.next()) is not None]
    return [next(t for t in found if t.config == config) for config in configs]
