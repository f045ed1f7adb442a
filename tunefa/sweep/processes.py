"""The processes of a worker that measures. They are started before the worker has loaded what it
needs itself, so this module imports next to nothing."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import dataclass

from tunefa.compile.place import Place
from tunefa.compile.workers import Workers
from tunefa.measure import loading
from tunefa.sweep.seat import Seat

_MODELS = 3
"""The processes that list configs and ask the cost model, so that kernels wait less for others."""
_LIMIT_S = 60.0


@dataclass(frozen=True)
class Started:
    """Processes that all slices of a worker share."""

    bench: Workers
    """The one worker in which kernels run."""
    compilers: Workers
    models: tuple[Workers, ...] = ()
    """The ones that ask the cost model, with a process each; none where compilers have no cores of
    their own."""


@contextlib.contextmanager
def started(seat: Seat) -> Iterator[Started | None]:
    """The bench and the compilers of a worker that measures; None for others."""
    if not seat.measured:
        yield None
        return
    place = Place(cores=seat.share.compilers)
    with contextlib.ExitStack() as stack:
        bench = stack.enter_context(Workers(1))
        loading.warm_up(bench, "tunefa.measure.measured")
        models = [
            stack.enter_context(Workers(1, place=place))
            for _ in range(_MODELS if seat.share.compilers else 0)
        ]
        for each in models:
            each.submit(load, ("tunefa.search.model_process",), _LIMIT_S)
        pool = importlib.import_module("tunefa.compile.pool")  # while PyTorch is loaded
        compilers = stack.enter_context(pool.compilers(seat.share.processes, place=place))
        if seat.share.compilers:
            pool.warm_up(compilers, "gluon")  # and Triton with it
        yield Started(bench, compilers, tuple(models))


def load(module: str) -> None:
    """Runs in a process: imports what its first task needs."""
    importlib.import_module(module)
