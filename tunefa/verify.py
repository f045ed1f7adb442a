"""Re-times stored winners instead of searching again: what to run after an upgrade.

Each record of this device races against the kernel's default and its own stored runner-up, with the
gate and the statistics of a search's finals. Seconds, not minutes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tunefa import provenance
from tunefa.arch import Arch, Device
from tunefa.errors import TunefaError
from tunefa.evaluate import Objective
from tunefa.kernel import Kernel
from tunefa.measured import Measured
from tunefa.record import Record
from tunefa.trial import Config, Trial
from tunefa.winner import Winner
from tunefa.workload import Workload

Outcome = Literal["kept", "swapped", "failed"]
MakeObjective = Callable[[Kernel, Workload, Arch, Device, int | None], Objective]


@dataclass(frozen=True)
class Verified:
    """What became of one record."""

    record: Record
    outcome: Outcome
    """`kept`: still the fastest; `swapped`: another is, see `instead`; `failed`: it does not run
    or is wrong."""
    why: str
    drift: list[str]
    """What changed since it was measured."""
    instead: Record | None = None
    """The record to store in its place."""

    @property
    def regressed(self) -> bool:
        """Whether the stored config is no longer what it was."""
        return self.outcome != "kept"


def verify(
    record: Record,
    kernel: Kernel,
    chip: tuple[Arch, Device],
    workers: int | None = None,
    objective: MakeObjective = Measured,
) -> Verified:
    """Races a measured record on the device that is there, which must be the record's.

    Raises TunefaError when the kernel does not serve the workload any more.
    """
    arch, device = chip
    workload, drift = record.workload, provenance.drift(record, kernel)
    if reason := kernel.why_not(workload, arch):
        raise TunefaError(f"{kernel.name} does not serve {workload} on {arch.name}: {reason}")
    if refusal := kernel.refusal(record.config, workload, arch):
        return Verified(record, "failed", f"refused: {refusal}", drift)
    default, rivals = _rivals(record, kernel, arch)
    configs = [record.config, *rivals]
    with objective(kernel, workload, arch, device, workers or len(configs)) as evaluator:
        trials = _trials(evaluator, configs)
        mine, others = trials[0], [t for t in trials[1:] if t.outcome == "ok"]
        if mine.outcome != "ok":
            return Verified(record, "failed", f"{mine.outcome}: {mine.reason}", drift)
        raced = evaluator.race([mine, *others], default)
    mine = next(t for t in raced.trials if t.config == record.config)
    if raced.winner is None or raced.certificate is None or mine.outcome != "ok":
        return Verified(record, "failed", f"{mine.outcome}: {mine.reason}", drift)
    best = Winner(kernel, raced.winner, raced.certificate)
    slower = (mine.median_us or 0.0) / best.median_us - 1.0
    floor = raced.certificate["noise_floor"]
    if raced.winner.config == record.config or slower <= floor:
        why = f"still as fast as any of {len(others) + 1} (noise floor {floor:.1%})"
        return Verified(record, "kept", why, drift)
    why = f"{slower:.1%} slower than another (noise floor {floor:.1%})"
    notes = {"verified": record.provenance["date"], "trials": len(trials)}
    return Verified(record, "swapped", why, drift, best.record(workload, arch, device.name, notes))


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
    found = [evaluator.next() for _ in configs]
    return [next(t for t in found if t.config == config) for config in configs]
