"""Makes the plans of one family of dense calls, which differ in batch and lengths only.

The first call of a family is planned as every call was before there were families
(`tunefa.runtime.planning`). The second one prepares the family, which takes tens of milliseconds.
From then on a new length costs no compiling, no file and no search through records: the choice is
the family's (`tunefa.runtime.family`), the binary is one that was compiled before, and tables are
shared. Where a call needs another binary, which a family does for each of its few configs once, the
call is planned as the first one was.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from tunefa.compile.contract import Compiled, CompileError, LaunchSpec
from tunefa.compile.launch import driver
from tunefa.compile.launch import lengths as launch_lengths
from tunefa.compile.launch.resizable import ResizableLaunch
from tunefa.costmodel.specialize import specialized
from tunefa.errors import TunefaError
from tunefa.runtime.bounded_cache import BoundedCache
from tunefa.runtime.call import Options, Tensors, heads_first
from tunefa.runtime.cells import MAX_CELLS, Lengths, place
from tunefa.runtime.choice import Chosen
from tunefa.runtime.compiled import Compiler
from tunefa.runtime.family import Family
from tunefa.runtime.family_binaries import FamilyBinaries
from tunefa.runtime.family_call import FamilyCall
from tunefa.runtime.family_facts import FamilyFacts
from tunefa.runtime.kernel_plan import KernelPlan, Launches
from tunefa.runtime.plan import Plan
from tunefa.runtime.resized import (
    TENSORS,
    Binary,
    ResizedConfig,
    ResizedPlan,
    Tables,
    resizing,
)
from tunefa.runtime.tables import TableCache
from tunefa.spec import looked_up
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case
from tunefa.spec.trial import identity
from tunefa.spec.workload import Workload
from tunefa.store.lookup import Choice

MAX_CONFIGS, MAX_CHOICES = 64, 2048
"""The most configs of a family, and choices, that are kept with what is prepared for them."""
_NOTHING = (None, None)


OfDevice = tuple[Compiler, TableCache]
"""The objects that the families of a device share."""


class FamilyPlans:
    """The plans of a family on one device."""

    def __init__(self, family: Family, of_device: OfDevice, options: Options) -> None:
        """Makes a family's plans on a device."""
        self._family, (compiler, self._tables) = family, of_device
        self.facts = FamilyFacts.of(family, self._tables.device, options)
        self.sms = family.target.device.sms
        self._binaries = FamilyBinaries(self.facts, compiler, self._tables)
        self._configs: BoundedCache[tuple[ResizedConfig | None]] = BoundedCache(MAX_CONFIGS)
        """By kernel and values; None where the kernel does not say what follows the lengths."""
        self._of_choice: dict[int, tuple[Choice, ResizedConfig | None]] = {}
        """By the identity of a choice: the choice, and its config."""
        self._sure: BoundedCache[_Sure] = BoundedCache(MAX_CELLS)
        """By cell: what all its lengths get."""

    def has_few(self, call: FamilyCall) -> bool:
        """Whether a call may run as attention over a cache."""
        batch, rows, keys = call.lengths
        return looked_up.are_few(rows, keys) and looked_up.leaves_idle(
            batch, call.sizes[1][1], self.sms
        )

    def plan(self, tensors: Tensors, call: FamilyCall) -> Plan | None:
        """The plan for a call of the family; None where something must be compiled first, and where
        no kernel serves the call."""
        found = self._known(call)
        if found is not None:
            return found
        try:
            return self.next_plan(call) or self._anew(tensors, call)
        except (CompileError, TunefaError):  # planning it anew says why
            return None

    def next_plan(self, call: FamilyCall) -> ResizedPlan | None:
        """The plan for a call that may come next; None where something must be compiled first.

        Raises TunefaError where no kernel serves the call.
        """
        found = self._known(call)
        if found is None and self._learn(call.lengths):
            found = self._known(call)
        return found

    def _known(self, call: FamilyCall) -> ResizedPlan | None:
        """The plan for lengths of which everything is known; None for others."""
        asked = call.lengths
        found = self._sure.get(place(*asked))
        if found is not None and found.holds(asked):
            _, _, choice, config = found
        else:
            remembered = self._family.remembered(asked)
            known = self._of_choice.get(id(remembered), _NOTHING)
            if remembered is None or known[1] is None:
                return None
            choice, config = remembered, known[1]
        binary = config.binaries.get(config.lengths.variant(asked[1], asked[2]))
        if binary is None or (tables := config.tables(asked)) is None:
            return None
        return ResizedPlan(self.facts, (choice, config, binary, tables), call)

    def _learn(self, asked: Lengths) -> bool:
        """Prepares what `_known` needs beside a binary. Returns whether that may do."""
        workload = self._family.workload(asked)
        choice = self._family.general(workload)
        if choice is None:
            return False
        config = self._config(choice, workload)
        if config is None:
            return False
        if config.tables(asked) is None:
            self._learn_tables(config, asked, choice.is_final)
        if (sure := self._family.sure_around(asked)) is not None:
            self._sure.add(place(*asked), _Sure(*sure, choice, config))
        return True

    def _config(self, choice: Choice, workload: Workload) -> ResizedConfig | None:
        """The config of a choice; None where its kernel does not say what follows the lengths."""
        if id(choice) not in self._of_choice:
            key = choice.kernel, choice.is_final, identity(choice.config)
            if self._configs.get(key) is None:
                kernel = self._family.kernel(choice.kernel)
                self._configs.add(key, (resized_config(choice, kernel, workload, self.sms),))
            (config,) = self._configs.get(key) or _NOTHING[1:]
            if len(self._of_choice) >= MAX_CHOICES:
                self._of_choice.clear()
            self._of_choice[id(choice)] = choice, config
        return self._of_choice[id(choice)][1]

    def _learn_tables(self, config: ResizedConfig, asked: Lengths, is_final: bool) -> None:
        workload = self._family.workload(asked)
        case = Case(config.kernel, workload, self._family.target)
        changes: dict[str, Any] = {}
        wanted: dict[str, Any] = {}
        if not is_final:
            specialize = getattr(config.kernel.module, "specialize", None)
            wanted = specialize(workload, config.config, self.sms) if specialize else {}
            changes = specialized(case, config.config) if wanted else {}
        made = {**config.config, **changes}
        seen_sms = driver.device(self.facts.device).sms
        spec = LaunchSpec(case, made, 1.0, self.facts.softcap, seen_sms, self._tables)
        tables = Tables(changes, tuple(config.lengths.tables(spec, self._tables.place)))
        config.keep(asked, wanted, tables)

    def _anew(self, tensors: Tensors, call: FamilyCall) -> KernelPlan | None:
        """The plan for a call whose launch is prepared by the kernel's `arguments`; other lengths
        with its binary are started by that launch from then on."""
        layout = self.facts.layout
        views = _heads_first(tensors, layout)
        workload = self._family.workload(call.lengths)
        choice = self._family.quick(workload)
        kernel = self._family.kernel(choice.kernel)
        case = Case(kernel, workload, self._family.target)
        if kernel.is_library or (compiled := self._binaries.compiled(case, choice)) is None:
            return None
        chosen = Chosen(kernel.name, choice.config, choice.how, choice.why, workload)
        whole = self._family.whole_kernel(kernel.name)
        launches = self._binaries.launches(chosen, whole, compiled, views)
        if launches is None:
            return None
        self._learn_binary(call, whole, compiled, launches)
        return _plan(chosen, launches, tensors, layout)

    def _learn_binary(
        self, call: FamilyCall, kernel: Kernel, compiled: Compiled, launches: Launches
    ) -> None:
        asked = call.lengths
        choice = self._family.remembered(asked)
        config = None if choice is None else self._of_choice.get(id(choice), _NOTHING)[1]
        tables = None if config is None else config.tables(asked)
        if config is None or tables is None:
            return
        sized = resizing(config, tables, call, self.facts.layout)
        launch = ResizableLaunch.of(launches.launch, TENSORS, sized)
        if launch is not None:
            binary = Binary(launch, partial(self.facts.preparing, kernel, compiled))
            config.binaries[config.lengths.variant(asked[1], asked[2])] = binary


class _Sure(NamedTuple):
    """The answer for all lengths of a cell, from the lowest to the highest that are known."""

    low: Lengths
    high: Lengths
    choice: Choice
    config: ResizedConfig

    def holds(self, asked: Lengths) -> bool:
        """Whether the lengths are between the lowest and the highest."""
        (_, rows, keys), (_, low_q, low_k), (_, high_q, high_k) = asked, self[0], self[1]
        return low_q <= rows <= high_q and low_k <= keys <= high_k


def resized_config(
    choice: Choice, kernel: Kernel, workload: Workload, sms: int
) -> ResizedConfig | None:
    """Returns a config whose launches follow lengths; None where its kernel does not say how."""
    if not isinstance(kernel, Kernel):  # a test's
        return None
    found = launch_lengths.load(kernel, workload, choice.config, sms)
    return None if found is None else ResizedConfig(choice.config, kernel, found)


def _plan(chosen: Chosen, launches: Launches, tensors: Tensors, layout: str) -> KernelPlan:
    q, w = tensors.q, chosen.workload
    assert w is not None
    out_like_q = q.is_contiguous() and w.head_dim == w.head_dim_v
    return KernelPlan(chosen, layout, launches, rows_contiguous=True, out_like_q=out_like_q)


def _heads_first(tensors: Tensors, layout: str) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = tensors[:3]
    return heads_first(q, layout), heads_first(k, layout), heads_first(v, layout)
