"""The winner of a kernel's race, and the record that it becomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tunefa.compile import languages, provenance
from tunefa.costmodel import version
from tunefa.costmodel.estimate import devices_compared
from tunefa.costmodel.ranking import rank_us
from tunefa.spec.arch import Arch
from tunefa.spec.kernel import Kernel
from tunefa.spec.trial import Mode, Trial, time_us
from tunefa.spec.workload import Workload
from tunefa.store.record import ObjectiveKind, Record


@dataclass(frozen=True)
class Winner:
    """The best trial of one kernel."""

    kernel: Kernel
    trial: Trial
    certificate: dict[str, Any] | None
    mode: Mode | None
    """The mode that it was timed in; None where the time is predicted."""
    objective: ObjectiveKind = "predicted"
    """The kind of its time if it was not measured."""
    provenance: Mapping[str, Any] | None = None
    """The kernel's; None if it is not known, and must be found out for a record."""

    @property
    def median_us(self) -> float:
        """Its time in us."""
        return time_us(self.trial)

    @property
    def rank_us(self) -> float:
        """The time by which the winners of several kernels are compared, see `ranking.rank_us`."""
        return rank_us(self.trial)

    def record(
        self, workload: Workload, arch: Arch, device_name: str | None, notes: dict[str, Any]
    ) -> Record:
        """The record of the winner; `device_name` is None where nothing was measured.

        `notes` are added to its provenance, beside the versions and the check.
        """
        resources = self.trial.resources
        kept = None if resources is None else replace(resources, planned=None, code=None)
        planned = None if resources is None else resources.planned
        if planned is not None and planned.changed:  # the compiler has changed flags of the config
            notes = {**notes, "changed_by_the_compiler": dict(planned.changed)}
        return Record(
            kernel=self.kernel.name,
            arch=arch.name,
            device=device_name,
            workload=workload,
            config=dict(self.trial.config),
            objective=self.objective if device_name is None else "measured",
            median_us=self.median_us,
            tflops=workload.flops / self.median_us / 1e6,
            resources=kept,
            certificate=self.certificate,
            mode=self.mode,
            provenance={
                **(self.provenance or provenance.of(self.kernel)),
                **({} if device_name else self._prediction(arch)),
                **notes,
                "check": self._check(device_name),
            },
        )

    def _prediction(self, arch: Arch) -> dict[str, Any]:
        """The versions of the model that predicted the time, its error, and the devices that it was
        compared with."""
        made = version.provenance(self.objective, arch.name, self.kernel.op)
        sd = self.trial.predicted_sd
        if sd:
            made |= {
                "predicted_sd": sd,
                "compared_with": devices_compared(arch.name, self.kernel.op),
            }
        return made

    def _check(self, device_name: str | None) -> str:
        """The check that it passed, in words, or the reason that there was none."""
        if self.trial.error is not None:
            against = "fp64 in the interpreter" if device_name is None else "fp32 on the device"
            return f"relative error {self.trial.error:.1e} against {against}"
        reason = languages.load(self.kernel.language).why_no_interpreter()
        return f"none: {reason}" if reason and device_name is None else "none"
