"""The binaries that `benchmarks.soak` needs, for all cores to compile before its rounds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace

from benchmarks.compiled_ahead import Task
from benchmarks.random_calls import RandomCall, TrainingStep
from tunefa.compile import languages
from tunefa.errors import TunefaError
from tunefa.runtime.choose import Chooser
from tunefa.spec import kernel as kernels
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload
from tunefa.store import results


def binaries(cases: Iterable[RandomCall], target: Target) -> list[Task]:
    """Returns a case and a config for each binary that calls need, as far as can be told.

    Configs are those that records and defaults choose: of the forward pass and, for steps of
    training, of the backward pass.
    """
    found: dict[Hashable, Task] = {}
    store = results.default_store()
    choosers = {op: Chooser(store, target, _serving(op)) for op in ("fwd", "bwd")}
    for workload in {each: None for case in cases for each in _workloads(case)}:
        try:
            choice = choosers[workload.op].choose(workload)
        except TunefaError:  # no kernel serves it
            continue
        case, config = Case(kernels.load(choice.kernel), workload, target), dict(choice.config)
        if not case.kernel.is_library:
            language = languages.load(case.kernel.language)
            key = choice.kernel, language.binary_key(case, config, workload.is_aligned)
            found.setdefault(key, (case.names, config))
    return list(found.values())


def _workloads(case: RandomCall) -> Iterator[Workload]:
    """Yields that of the forward pass and, of a step of training, that of the backward pass."""
    yield (forward := case.call(*case.tensors("meta")).workload())
    if isinstance(case, TrainingStep):
        yield replace(forward, op="bwd")


def _serving(op: str) -> list[kernels.Kernel]:
    return [each for each in kernels.usable() if each.op == op]
