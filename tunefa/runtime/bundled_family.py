"""A family of workloads that bundles serve: each gets the nearest plan whose binary is there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefa.errors import TunefaError
from tunefa.runtime.bundles import Bundles, Found
from tunefa.runtime.cells import lengths_of
from tunefa.runtime.chip import Chip
from tunefa.runtime.family import Family
from tunefa.runtime.job import Job, P
from tunefa.runtime.planning import served
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload
from tunefa.store import distances, lookup
from tunefa.store.lookup import Choice
from tunefa.store.results import Store


@dataclass(frozen=True)
class BundledChoice(Choice):
    """A config from a bundle's plan. It has no record: the plan says why it was chosen."""

    found: Found | None = None

    @property
    def why(self) -> str:
        """The reason for the choice, in one sentence."""
        assert self.found is not None
        return replace(self.found, octaves=self.octaves).why

    def seen_from(self, workload: Workload, target: Target) -> BundledChoice:
        """Returns the choice with the distance of its plan from a workload on a target."""
        assert self.found is not None
        plan = self.found.plan
        octaves = distances.distance(plan.workload, workload)
        octaves += distances.device_octaves(plan.device, target)
        return replace(self, octaves=octaves)


class BundledFamily(Family):
    """Chooses among the plans of bundles, as `Bundles.plan` does."""

    def __init__(self, bundles: Bundles, workload: Workload, target: Target) -> None:
        """Makes the family of a workload; all bundled plans of the family count."""
        self._bundles = bundles
        plans = [plan for file in bundles.files for plan in file.plans
                 if plan.arch == target.arch.name
                 and lookup.may_serve(plan.workload, workload)]  # fmt: skip
        names = dict.fromkeys(plan.kernel for plan in plans)
        super().__init__(Store(()), workload, target, [bundles.kernels[name] for name in names])
        # These have configs of their own, which lengths nearby do not get.
        self._measured = {lengths_of(plan.workload) for plan in plans}

    def unspecialized(self, workload: Workload) -> Choice:
        """Returns the choice before its kernel sets parameters for the workload.

        Raises TunefaError where the bundles do not serve it.
        """
        arch = self.target.arch
        for found in self._bundles.near(workload, self.target):
            kernel, plan = self.kernel(found.plan.kernel), found.plan
            config = dict(plan.config if found.is_exact else plan.base)
            if kernel.why_not(workload, arch) or kernel.refusal(config, workload, arch):
                continue
            case = Case(kernel, workload, self.target)
            if self._bundles.has(case, config, aligned=True):
                return BundledChoice(
                    plan.kernel, config, found.how, None, found.octaves,
                    is_final=found.is_exact or plan.is_final, found=found,
                )  # fmt: skip
        raise TunefaError(f"no bundle serves {workload} on {self.target}")


def bundled_family(job: Job[P], chip: Chip, bundles: Bundles) -> BundledFamily | None:
    """The family of a job that bundles serve; None for others.

    Raises TunefaError where no kernel can serve the job, and if no bundle has binaries for the
    chip's arch.
    """
    if not bundles:
        return None
    workload, target = served(job, chip)
    bundles.check_arch(target)
    if not bundles.near(workload, target):
        return None
    return BundledFamily(bundles, workload, target)
