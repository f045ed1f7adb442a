"""The means of a process to plan: its records, its kernels, its devices, and its lock file."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from tunefa.compile import languages
from tunefa.compile.launch.lengths import CacheSizes
from tunefa.compile.serving import Installed, UsableStore
from tunefa.errors import TunefaError
from tunefa.runtime import config_hash, few_queries, gathered, planning
from tunefa.runtime import plan as plans
from tunefa.runtime.backward import Backward
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.bundled_family import bundled_family
from tunefa.runtime.bundles import Bundles
from tunefa.runtime.cache_family import CacheFamily
from tunefa.runtime.call import Call, Options, Tensors
from tunefa.runtime.cells import Lengths, lengths_of
from tunefa.runtime.chip import Chip
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.decode_plan import CachePlan, Decode
from tunefa.runtime.family import Family
from tunefa.runtime.family_call import FamilyCall
from tunefa.runtime.family_plans import FamilyPlans
from tunefa.runtime.few_queries import FewQueriesPlan
from tunefa.runtime.gradient_family import GradientFamily
from tunefa.runtime.job import Job, P
from tunefa.runtime.lock_file import FreezeState
from tunefa.runtime.planning import Choices
from tunefa.runtime.prefill_plan import Prefill
from tunefa.runtime.tables import TableCache
from tunefa.spec import kernel as kernel_files
from tunefa.spec import looked_up
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.store import bundle_file
from tunefa.store import results as store
from tunefa.store.bundle_file import BundleFile
from tunefa.store.record import Record
from tunefa.store.results import Store

MAX_FEW = 64
"""The most families of calls with few queries that are kept."""


class Records(Store):
    """The records that were loaded into this process, followed by those on disk."""

    def __init__(self, roots: Sequence[Path]) -> None:
        super().__init__(roots)
        self.loaded: list[Record] = []

    def records(self) -> list[Record]:
        """All of them, in the order in which they come into question."""
        return [*self.loaded, *super().records()]


class Planner:
    """Makes the plans of a process. Its caller holds `lock`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.kernels: tuple[Kernel, ...] | None = None
        self.devices: dict[torch.device, tuple[Chip, Compiler]] = {}
        self.freeze = FreezeState()
        self.bundles = Bundles()
        self._records: Records | None = None
        self._installed: Installed | None = None
        self._tables: dict[int, TableCache] = {}
        self._takes_libraries = True
        self._cache_choices: Choices = {}
        self._of_few: set[tuple[Workload, str | None]] | None = None
        """The forward passes with few queries that have records, and the records' devices."""
        self._measured_few: set[Lengths] = set()
        """The batches and lengths of these."""
        self._few: BoundedCache[CacheFamily] = BoundedCache(MAX_FEW)
        """By the family of a call and its number of queries."""
        self._unsplit: set[tuple[Workload, torch.device]] = set()
        """The workloads over a cache for which nothing compiled on a device."""

    @property
    def records(self) -> Records:
        """All records, read from disk when they are first asked for."""
        if self._records is None:
            self._records = Records(store.default_store().roots)
        return self._records

    def load(self, path: Path, frozen: bool) -> None:
        """Adds the records of a file, or a bundle, or freezes to it.

        Raises TunefaError if it cannot be read.
        """
        self._forget()
        if frozen:
            self.freeze.to(path)
            self._frozen_bundle()
            return
        self.freeze.admit(path)
        if bundle_file.is_one(path):
            self.bundles.add(BundleFile(path))
        else:
            self.records.loaded = [*store.read(path), *self.records.loaded]

    def use_only(self, records: list[Record]) -> None:
        """From now on plans with these records alone, and reads none from disk."""
        self._forget()
        self._records = Records(())
        self._records.loaded = records

    def config_parts(self) -> dict[str, str]:
        """The parts that decide which config a call runs, see `tunefa.runtime.config_hash`."""
        lock = self.freeze.file
        records = [] if lock is not None else self.records.records()
        return config_hash.parts(lock, self.bundles.files, records, self._ready())

    def leave_out_libraries(self) -> None:
        """From now on plans no kernel that calls a library."""
        self._takes_libraries = False
        self._forget()

    def plan(self, job: Job[P]) -> P:
        """The new plan of a job."""
        chip, compiler = self._device(job.call.q.device)
        lock = self.freeze.file
        if lock is not None and lock.bundle is not None:
            return self._frozen_bundle().frozen_plan(job, chip, lock, compiler)
        if lock is None and (bundled := self.bundles.plan(job, chip, compiler)) is not None:
            return bundled
        self.bundles.tell(job, chip)
        known, serving = self._known(job)
        if lock is None and isinstance(job, Prefill):
            packed = self._serving("fwd")
            if (over := gathered.plan(job, chip, known, packed, compiler)) is not None:
                return cast(P, over)
        if lock is None:
            one_for_all = isinstance(job, Decode) and job.call.options.batch_invariant
            choices = self._cache_choices if one_for_all else None
            return planning.best_plan(job, chip, known, serving, compiler, choices)
        if job.op == "bwd" and all(record.workload.op != "bwd" for record in lock.records):
            return planning.pytorch_plan(job, f"{lock.path} has no record of gradients")
        return planning.frozen_plan(job, chip, lock, self._ready(), compiler)

    def few_queries(
        self, tensors: Tensors, options: Options, family: FamilyCall | None = None
    ) -> FewQueriesPlan | None:
        """The plan of a call that runs as attention over a cache; None for other calls, and where
        a record was measured for just this forward pass on this device. `family` is the call's, if
        it has one."""
        chip, _ = self._device(tensors.q.device)
        if self.freeze.file is not None or chip.target is None:
            return None
        if not few_queries.serves(tensors, options, chip.target.device.sms):
            return None
        plan = self._of_few_queries(tensors, options, chip.target)
        if plan is not None and family is not None:
            sizes = few_queries.sizes(family, options.layout)
            new = self.cache_family(plan.over_cache, tensors.q.device, sizes, few_queries.TENSORS)
            if new is not None:
                self._few.add((family.family, family.lengths.seqlen_q), new)
        return plan

    def known_few(self, call: FamilyCall, options: Options) -> FewQueriesPlan | None:
        """The result of `few_queries` for a call of a family of which one was planned; None for
        others, and where a rule refuses the config."""
        batch, rows, keys = call.lengths
        if not looked_up.are_few(rows, keys) or self.freeze.file is not None:
            return None
        kept = self._few.get((call.family, rows))
        if kept is None or call.lengths in self._measured_few:
            return None
        if not looked_up.leaves_idle(batch, call.sizes[1][1], kept.maker.target.device.sms):
            return None
        made = kept.plan(few_queries.sizes(call, options.layout))
        seqlens = few_queries.all_keys(kept.device, batch)
        return None if made is None else FewQueriesPlan(made, options.layout, seqlens)

    def cache_family(
        self, plan: CachePlan, device: torch.device, sizes: CacheSizes, tensors: int
    ) -> CacheFamily | None:
        """The family of a call over a cache that has this plan, these sizes and so many tensors;
        None where its launches do not follow sizes."""
        chip, compiler = self._device(device)
        if chip.target is None:
            return None
        known = self.bundles.kernels.get(plan.chosen.kernel)
        kernels = self._serving("decode") if known is None else [known]
        return CacheFamily.of(plan, kernels, (chip.target, compiler), sizes, tensors)

    def _of_few_queries(
        self, tensors: Tensors, options: Options, target: Target
    ) -> FewQueriesPlan | None:
        chip, compiler = self._device(tensors.q.device)
        call = Call.of(tensors, options, None)
        try:
            job, own = few_queries.job(tensors, options), call.workload()
            asked = job.asked()
        except TunefaError:  # the forward pass says what no kernel serves, and PyTorch computes it
            return None
        place = asked, tensors.q.device
        if call.empty or place in self._unsplit:
            return None
        if self.bundles:
            bundled = self.bundles.few_queries(job, own, chip, compiler)
            if bundled is not None or self.bundles.near(own, target):
                return bundled
        known, serving = self._known(job)
        lacking = languages.without_compiler(serving, target.arch)
        if all(each.name in lacking for each in serving):
            return None
        if self._of_few is None:
            few = (r for r in known.records() if r.workload.op == "fwd")
            self._of_few = {(r.workload, r.device) for r in few if looked_up.is_few(r.workload)}
            self._measured_few = {lengths_of(workload) for workload, _ in self._of_few}
        if (own, target.device.name) in self._of_few:
            return None
        plan = planning.best_plan(job, chip, known, serving, compiler, self._cache_choices)
        if plan.is_of_kernel:
            return plan
        if all(x.data_ptr() % 16 == 0 for x in tensors[:3]):  # kernels may serve others like it
            self._unsplit.add(place)
        return None

    def family(self, job: plans.Forward) -> FamilyPlans | TunefaError:
        """The family of a job, or why it has none."""
        chip, compiler = self._device(job.call.q.device)
        tables = self._tables_of(job.call.q)
        made: Family | None
        try:
            made = bundled_family(job, chip, self.bundles)
            if made is None:
                made = planning.family(job, chip, *self._known(job))
            made.prepare()
        except TunefaError as error:
            return error
        return FamilyPlans(made, (compiler, tables), job.call.options)

    def gradient_family(self, job: Backward) -> GradientFamily | None:
        """The family of a job; None where it has none."""
        chip, compiler = self._device(job.call.q.device)
        if self.freeze.file is not None or self.bundles:
            return None
        try:
            made = planning.family(job, chip, *self._known(job))
        except TunefaError:  # planning the job says why
            return None
        return GradientFamily(made, (compiler, self._tables_of(job.call.q)), job.call.options)

    def _frozen_bundle(self) -> Bundles:
        """The bundles, with the one that the process is frozen to, if it is."""
        lock = self.freeze.file
        if lock is not None and lock.bundle is not None:
            self.bundles.keep_only(lock.bundle)
        return self.bundles

    def _forget(self) -> None:
        self._cache_choices.clear()
        self._unsplit.clear()
        self._few.clear()
        self._of_few = None

    def _known(self, job: Job[P]) -> tuple[UsableStore, list[Kernel]]:
        """The records that may serve, and the kernels of the job's op."""
        installed = self._ready()
        return UsableStore(self.records, installed), self._serving(job.op)

    def _serving(self, op: str) -> list[Kernel]:
        assert self.kernels is not None
        return [each for each in self.kernels if each.op == op and self._may_run(each)]

    def _tables_of(self, tensor: Tensor) -> TableCache:
        index = tensor.get_device()
        return self._tables.setdefault(index, TableCache(index))

    def _ready(self) -> Installed:
        if self.kernels is None:
            self.kernels = tuple(kernel_files.usable())
        self._installed = self._installed or Installed(self.kernels)
        return self._installed

    def _device(self, device: torch.device) -> tuple[Chip, Compiler]:
        if device not in self.devices:
            self.devices[device] = (Chip.of(device), Compiler(self.bundles.find))
        return self.devices[device]

    def _may_run(self, kernel: Kernel) -> bool:
        return self._takes_libraries or not kernel.is_library
