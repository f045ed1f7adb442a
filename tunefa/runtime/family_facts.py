"""The facts of a family that its plans need.

Plans may be kept longer than their family, whose rules, times and tables take megabytes. So a plan
holds these facts, and not the family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from tunefa.compile import languages
from tunefa.compile.contract import Compiled, Launch, LaunchSpec
from tunefa.runtime.backward import zero
from tunefa.runtime.call import Options
from tunefa.runtime.cells import Lengths, Workloads
from tunefa.runtime.choice import Chosen
from tunefa.runtime.family import Family
from tunefa.runtime.growth import Growth
from tunefa.runtime.kernel_plan import unread_lse
from tunefa.runtime.new_tensors import NewTensor, on_device
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Case, Target
from tunefa.store.lookup import Choice


class PrepareWith(Protocol):
    """Prepares a launch for a scale, with tables that are kept, or without."""

    def __call__(self, tensors: Sequence[Tensor], scale: float, tables: Any = None) -> Launch:
        """Returns the launch."""


@dataclass(eq=False)
class FamilyFacts:
    """The facts of a family of calls on one device."""

    workload: Workloads
    target: Target
    device: int
    """The number of the CUDA device; -1 for the CPU."""
    layout: str
    softcap: float | None
    growth: Growth = field(default_factory=Growth)
    """The last new calls."""
    _unread: tuple[int, int] = 0, 0
    """The elements and the address of the largest memory of an lse that was not read, which is
    never freed; other lengths write to a part of it."""

    @classmethod
    def of(cls, family: Family, device: int, options: Options) -> FamilyFacts:
        """Returns the facts of a family of calls with these options."""
        return cls(family.workload, family.target, device, options.layout, options.softcap)

    @cached_property
    def default_scale(self) -> float:
        """The factor of the scores in calls that give none."""
        return float(self.workload(Lengths(1, 1, 1)).head_dim ** -0.5)

    @cached_property
    def new_tensor(self) -> NewTensor:
        """Makes tensors on the device while it is the current one."""
        return on_device(self.device)

    @cached_property
    def zero(self) -> Tensor:
        """A zero on the device, see `backward.zero`."""
        return zero(torch.device("cpu" if self.device < 0 else f"cuda:{self.device}"))

    def explain(
        self, choice: Choice, asked: Lengths, changes: Mapping[str, Any] | None = None
    ) -> Chosen:
        """Returns the choice for these lengths, with the reason. `changes` are the parameters that
        the kernel sets for them."""
        workload = self.workload(asked)
        choice = choice.seen_from(workload, self.target)
        if changes:
            changed = dict(changes)
            choice = replace(choice, config={**choice.config, **changed}, specialized=changed)
        return Chosen(choice.kernel, dict(choice.config), choice.how, choice.why, workload)

    def preparing(self, kernel: Kernel, compiled: Compiled, chosen: Chosen) -> PrepareWith:
        """Returns what prepares launches of a binary with a choice."""
        assert chosen.workload is not None
        language = languages.load(kernel.language)
        case = Case(kernel, chosen.workload, self.target)
        config, softcap = chosen.config, self.softcap

        def prepare(tensors: Sequence[Tensor], scale: float, tables: Any = None) -> Launch:
            asked = LaunchSpec(case, config, scale, softcap, tables=tables)
            launch: Launch = language.prepare(asked, compiled, tensors)
            return launch

        return prepare

    def unread_at(self, elements: int) -> int:
        """Returns the address of memory for so many elements of an lse that no caller reads."""
        most, address = self._unread
        if most < elements:
            memory = unread_lse(self.device, elements)
            address = memory.data_ptr()
            self._unread = memory.numel(), address
        return address
