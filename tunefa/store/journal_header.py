"""The header of a journal: the question of a search, and what its trials can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from tunefa.errors import TunefaError, unknown
from tunefa.spec import arch_catalog as archs
from tunefa.spec.strict_yaml import Fields
from tunefa.spec.trial import MODES, Trial
from tunefa.spec.workload import Workload
from tunefa.store.record import ObjectiveKind

SCHEMA = 4
"""The version of journals. Version 1 has other names for parameters: see `schema1`. The lines of
versions before 3 have no checksum, those of versions before 4 no seconds."""
CHECKSUM = "checksum"
"""The last key of each line."""


@dataclass(frozen=True)
class Limits:
    """The trials that a journal can have."""

    schema: int = SCHEMA
    timed: bool = True
    """Whether its trials may have measured times."""
    least_us: float = 0.0
    """The time that no config of its workload can be below on its device."""

    def why_not(self, trial: Trial) -> str | None:
        """Returns why no search of this journal can have the trial; None if it can."""
        if trial.samples_us and not self.timed:
            return "it has measured times, but this search measured nothing"
        times = [us for us in (*trial.samples_us, trial.predicted_us) if us is not None]
        if min(times, default=self.least_us) < self.least_us:
            return (
                f"{min(times):g} us is less than the {self.least_us:.3g} us that its workload "
                "takes at the device's highest rate"
            )
        return None


def check(header: Any, where: str) -> Limits:
    """Returns the limits of a journal with this header. `where` begins each message.

    Raises TunefaError if it is no header, or a newer tunefa's, or if a value has the wrong type.
    """
    schema = header.get("tunefa_journal") if isinstance(header, dict) else None
    if type(schema) is not int or schema < 1:
        raise TunefaError(f"{where}: this is not a journal of tunefa: it has no header")
    if schema > SCHEMA:
        raise TunefaError(
            f"{where}: was written by a newer tunefa (schema {schema}, this one reads up to "
            f"{SCHEMA}): upgrade tunefa"
        )
    fields = Fields(header, where)
    named = {name: fields.take(name, str, None) for name in ("workload", "arch", "device")}
    objective = fields.take("objective", str, None)
    if objective not in (None, *get_args(ObjectiveKind)):
        raise TunefaError(f"{where}: {unknown('objective', objective, get_args(ObjectiveKind))}")
    mode = fields.take("mode", (str, type(None)), None)
    if mode not in (None, *MODES):
        raise TunefaError(f"{where}: {unknown('mode', mode, MODES)}")
    versions = Fields(fields.take("provenance", dict, {}), f"{where}: provenance")
    for kernel in header.get("provenance", {}):
        made = Fields(versions.take(kernel, dict), f"{where}: provenance of {kernel}")
        made.take("date", str, None)
        made.take("source_hash", str, None)
    return Limits(schema, objective in (None, "measured", "replayed"), _least_us(**named))


def _least_us(workload: str | None, arch: str | None, device: str | None) -> float:
    """Returns the time of the two matrix products at the highest rate and clock of the device.

    It is 0 where one of the three is missing, or is not known to this tunefa.
    """
    if workload is None or arch is None or device is None:
        return 0.0
    try:
        asked, chip = Workload.parse(workload), archs.load(arch).device(device)
    except TunefaError:
        return 0.0
    rates = chip.tensor_flops_per_clock_per_sm
    rate = rates.get(asked.dtype, max(rates.values()))
    return asked.flops / (chip.sms * rate * max(chip.boost_mhz, chip.max_mhz or 0.0))
