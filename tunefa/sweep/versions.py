"""The versions that a sweep is made with, which all its workers must have: times of two drivers or
two compilers cannot be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tunefa.compile import provenance
from tunefa.errors import TunefaError
from tunefa.spec.kernel import Kernel
from tunefa.sweep.installed import Installed
from tunefa.sweep.plan import Plan
from tunefa.sweep.requests import Items, serving
from tunefa.sweep.study import SweepStudy

NOTE = "versions"
_NOT_COMPARED = ("date",)


def kernels_of(plan: Plan, items: Items) -> list[Kernel]:
    """Returns the kernels that serve any of the items."""
    found = {kernel.name: kernel for each in items.items
             for kernel in serving(plan, each.workload, each.target)}  # fmt: skip
    return [found[name] for name in sorted(found)]


def agree(
    study: SweepStudy, plan: Plan, kernels: Sequence[Kernel],
    asked: Callable[[], Installed] | None = None,
) -> Installed | None:  # fmt: skip
    """Notes the versions of this host, unless the sweep has some already. Returns what `asked` says
    is installed, as `installed.ask` returns it; None without it.

    Raises TunefaError if the sweep has other versions.
    """
    held: dict[str, Any] = dict(study.notes.get(NOTE, {}))
    here = None if asked is None else asked()
    made = {k.name: provenance.of(k) for k in kernels} if here is None else here.versions
    own = {name: _compared(each, plan.measured) for name, each in sorted(made.items())}
    for name, each in own.items():
        for what, version in each.items():
            then = held.get(name, {}).get(what, version)
            if then != version:
                raise TunefaError(
                    f"the sweep has {what} {then}, and this host has {version} (of {name}): give "
                    "every host the same, or begin a new sweep"
                )
    if own.keys() - held.keys():
        study.note(NOTE, {**held, **own})
    return here


def _compared(made: Mapping[str, Any], measured: bool) -> dict[str, Any]:
    left_out = _NOT_COMPARED if measured else (*_NOT_COMPARED, "driver")  # it changes no prediction
    return {name: each for name, each in made.items() if name not in left_out}
