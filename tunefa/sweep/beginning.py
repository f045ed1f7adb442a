"""The first workload of a worker: compilers and the model begin with it while the worker loads
PyTorch."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from tunefa.search import preparation
from tunefa.search.model_process import ModelProcess
from tunefa.search.request import Processes
from tunefa.spec.target import Case
from tunefa.sweep.plan import Item, Plan
from tunefa.sweep.requests import serving

_SEARCH_MODULES = ("scipy.optimize", "scipy.linalg")
"""The first search would load these modules, which takes half a second."""


def begin(
    plan: Plan, item: Item, processes: Processes, model: ModelProcess, is_first: bool,
    others: Sequence[Item] = (),
) -> None:  # fmt: skip
    """Lets compilers and the model begin with a workload that was claimed, and loads what its
    search needs. Unless this `is_first` slice, its defaults are known, mostly.

    Compilers that are left begin with the defaults of `others`, which wait for their first slices:
    the GPU tries those of the first workload in a second.
    """
    cases = _cases(plan, item)
    model.begin(cases)
    if is_first:
        preparation.begin_defaults(cases, processes.compilers)
    left = processes.compilers.count - len(cases)
    for each in others:
        cases = _cases(plan, each)
        left -= len(cases)
        if left < 0:
            break
        preparation.begin_defaults(cases, processes.compilers)
    for name in _SEARCH_MODULES:
        importlib.import_module(name)


def _cases(plan: Plan, item: Item) -> list[Case]:
    kernels = serving(plan, item.workload, item.target)
    return [Case(kernel, item.workload, item.target) for kernel in kernels]
