"""The versions that a sweep is made with, which all its workers must have: times of two drivers or
two compilers cannot be compared."""

from __future__ import annotations

from typing import Any

from tunefa.compile import provenance
from tunefa.errors import TunefaError
from tunefa.spec.kernel import Kernel
from tunefa.sweep.plan import Plan
from tunefa.sweep.requests import Items, serving
from tunefa.sweep.study import SweepStudy

NOTE = "versions"
_NOT_COMPARED = ("date",)


def agree(study: SweepStudy, plan: Plan, items: Items) -> None:
    """Notes the versions of this host, unless the sweep has some already.

    Raises TunefaError if these are others.
    """
    kernels = {kernel.name: kernel for each in items.items
               for kernel in serving(plan, each.workload, each.target)}  # fmt: skip
    held: dict[str, Any] = dict(study.notes.get(NOTE, {}))
    own = {name: _of(kernel, plan.measured) for name, kernel in sorted(kernels.items())}
    for name, here in own.items():
        for what, version in here.items():
            then = held.get(name, {}).get(what, version)
            if then != version:
                raise TunefaError(
                    f"the sweep has {what} {then}, and this host has {version} (of {name}): give "
                    "every host the same, or begin a new sweep"
                )
    if own.keys() - held.keys():
        study.note(NOTE, {**held, **own})


def _of(kernel: Kernel, measured: bool) -> dict[str, Any]:
    found = provenance.of(kernel)
    if not measured:  # a driver changes no prediction
        found.pop("driver")
    return {name: each for name, each in found.items() if name not in _NOT_COMPARED}
