"""The configs of a kernel and their expected times, from a process of their own.

The searches of a sweep share one interpreter. While it lists the configs of one search and asks the
cost model for their times, for seconds, the search with the GPU would have to wait.
"""

from __future__ import annotations

import functools
from array import array
from typing import Any

from tunefa.compile.workers import ProcessLost, TaskRaised, Workers
from tunefa.costmodel.estimate import estimates
from tunefa.spec import kernel as kernels
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

LIMIT_S = 60.0
"""The limit of a task, which takes up to 5 s where a space has 100,000 configs."""
_KEPT = 8
"""The lists of configs that the process keeps, each of up to 100 MB: those of a few searches."""
_Named = tuple[str, str, Target]
"""A case, to pass to another process: kernel, workload and target."""


class ModelProcess:
    """Lists configs and asks the cost model. What its process cannot do is done here."""

    def __init__(self, workers: Workers) -> None:
        """`workers` has one process."""
        self._workers = workers

    def feasible(self, case: Case) -> Feasible:
        """Returns the configs that the rules allow, as `Space.feasible` does."""
        found = self._asked(_listed, case)
        if found is None:
            return case.feasible()
        names, rows, refused = found
        return Feasible(tuple(dict(zip(names, row, strict=True)) for row in rows), refused)

    def expected_us(self, case: Case, feasible: Feasible) -> list[float]:
        """Returns the time that the cost model expects of each config that `feasible` returned."""
        found = self._asked(_timed, case)
        if found is None or len(found) != len(feasible.configs):
            return [each.time_us for each in estimates(case, feasible.configs)]
        return list(found)

    def _asked(self, task: Any, case: Case) -> Any:
        named = case.kernel.name, str(case.workload), case.target
        try:
            return self._workers.submit(task, (named,), LIMIT_S).result()
        except (TimeoutError, ProcessLost, TaskRaised):
            return None


def _listed(named: _Named) -> tuple[tuple[str, ...], list[tuple[Any, ...]], dict[str, int]]:
    """Runs in the process: the names of parameters, the values of each config, and the refusals."""
    found = _feasible(named)
    names = tuple(found.configs[0]) if found.configs else ()
    return names, [tuple(each.values()) for each in found.configs], dict(found.refused)


def _timed(named: _Named) -> array[float]:
    """Runs in the process: the expected times in us, in the order of `_listed`."""
    return array("d", (e.time_us for e in estimates(_case(named), _feasible(named).configs)))


@functools.lru_cache(_KEPT)
def _feasible(named: _Named) -> Feasible:
    return _case(named).feasible()


def _case(named: _Named) -> Case:
    kernel, workload, target = named
    return Case(kernels.load(kernel), Workload.parse(workload), target)
