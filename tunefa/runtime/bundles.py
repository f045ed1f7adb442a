"""The bundles of a process: calls that they serve run without a compiler, and without a search
through the store.

A bundle (`tunefa bundle`, see `tunefa.store.bundle_file`) has the launch plans of workloads, and
their binaries. It serves a call whose workload it has, and others of the same family, however far
away: they get the nearest plan whose binary they can run. Every other call is looked up as in a
process without bundles. A process that is frozen to a bundle runs its exact plans only.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tunefa.compile import stored
from tunefa.compile.contract import Compiled, CompileError
from tunefa.compile.launch import generations
from tunefa.costmodel.specialize import specialized
from tunefa.errors import TunefaError
from tunefa.runtime import candidates, planning
from tunefa.runtime.chip import Chip
from tunefa.runtime.choice import Chosen
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.few_queries import FewQueries, FewQueriesPlan
from tunefa.runtime.job import Job, P
from tunefa.runtime.lock_file import LockFile
from tunefa.spec import kernel as kernel_files
from tunefa.spec import looked_up
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config
from tunefa.spec.workload import Workload
from tunefa.store import lookup
from tunefa.store.bundle_file import BundleFile, Plan
from tunefa.store.distances import device_octaves, distance
from tunefa.store.lookup import How
from tunefa.store.source_hashes import same_code


@dataclass(frozen=True)
class Found:
    """A plan that may serve a workload."""

    file: BundleFile
    plan: Plan
    octaves: float
    """The distance of the workload, see `tunefa.store.distances`, with that of the devices."""
    is_exact: bool
    """Whether the plan is for just this workload on this device."""
    is_of_device: bool
    """Whether it is for a device of this name."""

    @property
    def how(self) -> How:
        """The way in which the plan was found."""
        if self.is_exact:
            return self.plan.how
        return "nearest" if self.is_of_device else "other-device"

    @property
    def why(self) -> str:
        """The reason for the plan, in one sentence."""
        near = "" if self.is_exact else (
            f"the nearest plan is for {self.plan.workload} on {self.plan.device}, "
            f"{self.octaves:.1f} octaves (factors of two) away; "
        )  # fmt: skip
        return f"from the bundle {self.file.path}: {near}{self.plan.why}"

    def config(self, case: Case) -> dict[str, Any]:
        """Returns the config for the workload of a case, which the plan may serve."""
        if self.is_exact:
            return dict(self.plan.config)
        changes = {} if self.plan.is_final else specialized(case, self.plan.base)
        return {**self.plan.base, **changes}


class Bundles:
    """The bundles that a process has loaded. Its callers hold the planner's lock."""

    def __init__(self) -> None:
        self.files: list[BundleFile] = []
        """The one that was loaded last comes first."""
        self.kernels: dict[str, Kernel] = {}
        """The kernels of all bundles, by name."""
        self._told: set[tuple[object, ...]] = set()

    def __bool__(self) -> bool:
        return bool(self.files)

    def add(self, file: BundleFile) -> None:
        """Takes a bundle. Raises TunefaError, with its path, if its kernels have another source
        here, or if this machine's driver does not load its binaries."""
        loaded = {name: _kernel(file, name) for name in file.kernels}
        newest = generations.newest_cuda()
        for name, made in file.kernels.items():
            if why := generations.why_too_old(newest, str(made.get("compiler"))):
                raise TunefaError(f"{file.path} cannot be used here: for {name}, {why}")
        for kernel in loaded.values():
            stored.warm_up(kernel.language)
        self.kernels.update(loaded)
        self.files = [file, *(each for each in self.files if each.digest != file.digest)]

    def keep_only(self, file: BundleFile) -> None:
        """Drops all bundles but one. Raises TunefaError as `add` does."""
        if self.files != [file]:
            self.files = []
            self.add(file)

    def find(self, case: Case, config: Config, aligned: bool) -> Compiled | None:
        """The binary for a config, if a bundle has it. Raises CompileError if it cannot be read."""
        name, file = self._place(case, config, aligned)
        if file is None:
            return None
        return stored.restored(case.kernel.language, file.binaries[name], file.image)

    def has(self, case: Case, config: Config, aligned: bool) -> bool:
        """Whether a bundle has the binary for a config."""
        return self._place(case, config, aligned)[1] is not None

    def _place(self, case: Case, config: Config, aligned: bool) -> tuple[str, BundleFile | None]:
        """The name of a binary, and the bundle that has it."""
        if case.kernel.name not in self.kernels:
            return "", None
        name = stored.digest(case, config, aligned)
        return name, next((file for file in self.files if name in file.binaries), None)

    def plan(self, job: Job[P], chip: Chip, compiler: Compiler) -> P | None:
        """The plan for a job with what the bundles hold; None where they do not serve it.

        Raises TunefaError if no bundle has binaries for the chip's arch.
        """
        if not self.files:
            return None
        try:
            workload, target = planning.served(job, chip)
        except TunefaError:  # no kernel serves it
            return None
        self.check_arch(target)
        for found in self.near(job.asked(), target):
            case = Case(self.kernels[found.plan.kernel], workload, target)
            made = _prepared(job, found, case, compiler)
            if made is not None:
                return made
        return None

    def frozen_plan(self, job: Job[P], chip: Chip, lock: LockFile, compiler: Compiler) -> P:
        """The plan for a job of a process that is frozen to a bundle, which alone is loaded.

        Raises TunefaError where it has none for just this workload on this device.
        """
        try:
            workload, target = planning.served(job, chip)
        except TunefaError as error:
            raise lock.serves_no(f"call with q {tuple(job.call.q.shape)}", str(error)) from None
        if job.op == "bwd" and all(plan.workload.op != "bwd" for plan in self.files[0].plans):
            return planning.pytorch_plan(job, f"{lock.path} has no plan of gradients")
        asked = job.asked()
        exact = [found for found in self.near(asked, target) if found.is_exact]
        for found in exact:
            case = Case(self.kernels[found.plan.kernel], workload, target)
            if (made := _prepared(job, found, case, compiler)) is not None:
                return made
        why = "it has a plan, but no binary that reads these tensors" if exact else "it has no plan"
        raise lock.serves_no(
            f"call ({workload} on {target})", f"{why}: add it with 'tunefa bundle -w {workload}'"
        )

    def few_queries(
        self, job: FewQueries, own: Workload, chip: Chip, compiler: Compiler
    ) -> FewQueriesPlan | None:
        """The plan of a forward pass with few queries as attention over a cache; `own` is its
        workload as a forward pass. None where the bundles do not serve it so, or have a config that
        was measured for just this forward pass."""
        assert chip.target is not None
        exact = [found for found in self.near(own, chip.target) if found.is_exact]
        if any(found.plan.how == "exact" for found in exact):
            return None
        return self.plan(job, chip, compiler)

    def near(self, asked: Workload, target: Target) -> list[Found]:
        """The plans of a workload's family, the nearest first."""
        return sorted(
            self._of_family(asked, target),
            key=lambda found: (not found.is_exact, round(found.octaves, 6)),
        )

    def _of_family(self, asked: Workload, target: Target) -> Iterator[Found]:
        for file in self.files:
            for plan in file.plans:
                if plan.arch != target.arch.name or not lookup.may_serve(plan.workload, asked):
                    continue
                own = looked_up.of_record(plan.workload)
                here = plan.device == target.device.name
                octaves = distance(own, asked) + device_octaves(plan.device, target)
                yield Found(file, plan, octaves, here and own == asked, here)

    def tell(self, job: Job[Any], chip: Chip) -> None:
        """Warns, once for each kind of call, that bundles do not serve a job."""
        if not self.files:
            return
        try:
            workload, target = planning.served(job, chip)
        except TunefaError:  # which runs in PyTorch, with the reason
            return
        w = workload
        kind = w.op, w.dtype, w.head_dim, w.head_dim_v, w.causal, w.varlen, target.device.name
        if kind not in self._told:
            self._told.add(kind)
            warnings.warn(
                f"{self._paths} does not serve {workload} on {target}, so it is looked up as "
                f"without a bundle, and compiled: add it with 'tunefa bundle -w {workload}'",
                stacklevel=2,
            )

    def check_arch(self, target: Target) -> None:
        """Raises TunefaError if no bundle has binaries for the target's arch."""
        chips = [chip for file in self.files for chip in file.chips.items()]
        if all(arch != target.arch.name for arch, _ in chips):
            names = "; ".join(dict.fromkeys(text for _, text in chips)) or "no chip"
            raise TunefaError(
                f"{self._paths} has binaries for {names}, and this device is {target}: make it for "
                f"this chip too, with 'tunefa bundle --arch {target.arch.name}'"
            )

    @property
    def _paths(self) -> str:
        return ", ".join(str(file.path) for file in self.files)


def _prepared(job: Job[P], found: Found, case: Case, compiler: Compiler) -> P | None:
    """The plan for a job with a plan of a bundle; None where that does not serve it.

    Raises TunefaError if its binary cannot be used.
    """
    kernel = case.kernel
    if case.why_not() or candidates.why_unreadable(job, kernel) is not None:
        return None
    config = found.config(Case(kernel, job.asked(), case.target))
    aligned = candidates.is_aligned(job, kernel)
    if not aligned:
        config |= planning.unaligned_changes(config, kernel)
    if case.refusal(config) is not None:
        return None
    chosen = Chosen(kernel.name, config, found.how, found.why, case.workload)
    try:
        compiled = compiler.found(case, config, aligned)
        return None if compiled is None else planning.prepared(job, chosen, case, compiled)
    except CompileError as error:
        raise TunefaError(
            f"{found.file.path} has a binary of {kernel.name} for {case.workload} that cannot be "
            f"used on {case.target}: {error}"
        ) from error


def _kernel(file: BundleFile, name: str) -> Kernel:
    """The installed kernel of that name, whose source is that of the bundle.

    Raises TunefaError where it is another one, and where a plan's config is not in its space.
    """
    try:
        kernel = kernel_files.load(name)
        kernel.check()
    except TunefaError as error:
        raise TunefaError(f"{file.path} cannot be used here: {error}") from None
    was = same_code(name, str(file.kernels[name].get("source_hash")))
    if was != same_code(name, kernel.source_hash):
        raise TunefaError(
            f"{file.path} was made with another source of {name} ({was}, and this tunefa has "
            f"{kernel.source_hash}): make it again with this tunefa"
        )
    for plan in file.plans:
        if plan.kernel == name and (why := kernel.space.misfit(plan.config)):
            raise TunefaError(
                f"{file.path} was made with another search space of {name} ({why}): make it again "
                "with this tunefa"
            )
    return kernel
