"""The processes of a worker that measures, and what they begin with before its first search."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

from tunefa.compile import pool
from tunefa.compile.place import Place
from tunefa.compile.workers import Workers
from tunefa.measure import measured
from tunefa.search import preparation
from tunefa.search.model_process import ModelProcess
from tunefa.search.request import Processes
from tunefa.spec.target import Case
from tunefa.sweep.cores import Share
from tunefa.sweep.plan import Item, Plan
from tunefa.sweep.requests import serving
from tunefa.sweep.study import SweepStudy

_MODELS = 3
"""The processes that list configs and ask the cost model, so that kernels wait less for others."""
_SEARCH_MODULES = ("scipy.optimize", "scipy.linalg")
"""The first search would load these modules, which takes half a second."""


@contextlib.contextmanager
def shared(plan: Plan, share: Share) -> Iterator[Processes | None]:
    """The bench and the compilers of a measured sweep, which all its slices share; None where
    nothing is measured."""
    if not plan.measured:
        yield None
        return
    place = Place(cores=share.compilers)
    compilers = pool.compilers(share.processes, place=place)
    with Workers(1) as bench, compilers, contextlib.ExitStack() as stack:
        measured.warm_up(bench)  # both take seconds, while the first search lists its configs
        if share.compilers:
            pool.warm_up(compilers, "gluon")  # and Triton with it
        models = [stack.enter_context(Workers(1, place=place)) for _ in range(_MODELS)]
        yield Processes(bench, compilers, ModelProcess(*models) if share.compilers else None)


def begin(study: SweepStudy, item: Item, processes: Processes, model: ModelProcess) -> None:
    """Lets compilers and the model begin with a workload that was claimed, and loads what its
    search needs. The defaults of a workload that had a slice before are known, mostly."""
    kernels = serving(study.plan, item.workload, item.target)
    cases = [Case(kernel, item.workload, item.target) for kernel in kernels]
    model.begin(cases)
    if sum(each.key == item.key for each in study.slices()) == 1:
        preparation.begin_defaults(cases, processes.compilers)
    for name in _SEARCH_MODULES:
        importlib.import_module(name)
