"""The items of a sweep on one chip, and the searches that are made for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tunefa.errors import TunefaError
from tunefa.search import compilable, resume
from tunefa.search.budget import Budget
from tunefa.search.request import Request, usual_mode
from tunefa.spec import arch_catalog as archs
from tunefa.spec import kernel as kernels
from tunefa.spec.kernel import Kernel
from tunefa.spec.target import Target
from tunefa.spec.workload import Workload
from tunefa.sweep.installed import Installed
from tunefa.sweep.item_state import Standing
from tunefa.sweep.plan import Item, Plan

PROMISE = "promise: "
"""The beginning of the study's notes about what the model promises of an item."""


@dataclass(frozen=True)
class Items:
    """The items of a plan on some chips, and why others are left out."""

    items: tuple[Item, ...]
    refused: dict[str, str] = field(default_factory=dict)
    """By key: why no kernel serves the workload there."""

    @classmethod
    def of(cls, plan: Plan, targets: Sequence[Target]) -> Items:
        """Returns the items of a plan on these chips."""
        found: list[Item] = []
        refused: dict[str, str] = {}
        for target in targets:
            for workload, weight in plan.weights.items():
                item = Item(workload, target, weight)
                try:
                    serving(plan, workload, target)
                    target.check_memory(workload)
                except TunefaError as error:
                    refused[item.key] = str(error)
                else:
                    found.append(item)
        return cls(tuple(found), refused)

    @classmethod
    def on(cls, plan: Plan, keys: Collection[str], refused: Collection[str]) -> Items:
        """Returns the items of a plan on the chips that it names, or else on those that the keys of
        slices and of `refused` items name."""
        if plan.targets:
            targets = [Target.named(name) for name in plan.targets]
        else:
            places = dict.fromkeys(tuple(key.split("/")[:2]) for key in sorted({*keys, *refused}))
            targets = [_target(arch, device) for arch, device in places]
        found = [
            Item(w, target, weight) for target in targets for w, weight in plan.weights.items()
        ]
        return cls(tuple(each for each in found if each.key not in refused))

    def begin(
        self, notes: Mapping[str, Any], least: Mapping[str, float] | None = None
    ) -> list[Standing]:
        """Returns the standing of each item before its first slice, with the promises that are
        among the study's notes, and what it needs at `least`, by its key."""
        known = {} if least is None else least
        return [
            Standing(
                each.key, each.weight, each.workload, notes.get(PROMISE + each.key),
                least=known.get(each.key, 0.0),
            )
            for each in self.items
        ]  # fmt: skip


def _target(arch: str, device: str) -> Target:
    """The target with these names, whose device may be one that the arch's file lacks."""
    made = archs.load(arch)
    return Target(made, replace(made.device(), name=device))


def serving(plan: Plan, workload: Workload, target: Target) -> tuple[Kernel, ...]:
    """Returns the kernels that search a workload. Raises TunefaError if there are none."""
    own = tuple(name for name in plan.kernels if kernels.load(name).op == workload.op)
    named = own or plan.kernels
    return tuple(kernels.serving(workload, target.arch, named, libraries=not named))


def searched(plan: Plan, item: Item) -> int:
    """Returns how many kernels race for an item, about: of libraries, which may not be installed,
    one is counted."""
    kernels = serving(plan, item.workload, item.target)
    own = sum(not each.is_library for each in kernels)
    return own + (own < len(kernels))


@dataclass(frozen=True)
class Requests:
    """The parts that the searches of a worker have in common."""

    plan: Plan
    sweep: str
    """The name of the sweep."""
    workers: int
    """The compilers."""
    installed: Installed | None = None
    """The software that is installed here; None if each search finds it out."""

    def of(self, item: Item, budget: Budget) -> Request:
        """Returns the search of an item, which continues those that the sweep made of it before.

        Raises TunefaError if none of its kernels can be compiled on this machine.
        """
        plan, here = self.plan, self.installed
        made = Request(
            workload=item.workload,
            target=item.target,
            measured=plan.measured,
            kernels=serving(plan, item.workload, item.target),
            budget=budget,
            strategy=plan.strategy,
            seed=plan.seed,
            workers=self.workers,
            mode=plan.mode or usual_mode(item.workload),
            sweep=self.sweep,
            notes={"sweep": self.sweep},
            versions={} if here is None else here.versions,
        )
        made, _ = compilable.only(made, (), None if here is None else here.lacking)
        return replace(made, resume=resume.of_sweep(made))
