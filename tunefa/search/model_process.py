"""The configs of kernels and their expected times, from processes of their own.

The searches of a sweep share one interpreter. While it lists the configs of one search and asks the
cost model for their times, for seconds, the search with the GPU would have to wait.
"""

from __future__ import annotations

import functools
import itertools
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

from tunefa.compile.workers import ProcessLost, TaskRaised, Workers
from tunefa.costmodel.estimate import estimates
from tunefa.search.compiled_before import compiler_sees
from tunefa.search.config_table import ConfigTable, Positions
from tunefa.spec import kernel as kernels
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case, Target
from tunefa.spec.workload import Workload

LIMIT_S = 60.0
"""The limit of a task, which takes up to 5 s where a space has 100,000 configs."""
_KEPT = 8
"""The lists of configs that a process keeps, each of up to 100 MB: those of a few searches."""
_Named = tuple[str, str, Target]
"""A case, to pass to another process: kernel, workload and target."""


class ModelProcess:
    """Lists configs and asks the cost model. What its processes cannot do is done here."""

    def __init__(self, *workers: Workers) -> None:
        """Each of `workers` has one process. All about a kernel is done by the same one, which
        keeps its lists; kernels take turns at them."""
        self._workers = workers
        self._places: dict[str, int] = {}
        self._begun: dict[tuple[str, _Named], Future[Any]] = {}
        """By task and case: what was begun before it is needed. Times are kept until `forget`."""

    def begin(self, cases: Sequence[Case]) -> None:
        """Lets the processes begin with the configs of cases, then with their times, then with what
        compilers see of them."""
        for task, case in itertools.product((_listed, _timed, _seen), cases):
            self._asked(task, case)

    def feasible(self, cases: Sequence[Case]) -> list[Feasible]:
        """Returns the configs of each case that the rules allow, as `Space.feasible` does."""
        self.begin(cases)
        return [_read(case, self._result(_listed, case)) for case in cases]

    def expected_us(self, case: Case, feasible: Feasible) -> list[float]:
        """Returns the time that the cost model expects of each config that `feasible` returned."""
        found = self._result(_timed, case)
        if found is None or len(found) != len(feasible.configs):
            return [each.time_us for each in estimates(case, feasible.configs)]
        return list(found)

    def compiler_sees(self, case: Case) -> list[bool] | None:
        """Returns what `compiled_before.compiler_sees` does, if it is known by now."""
        begun = self._begun.get((_seen.__name__, _named(case)))
        if begun is None or not begun.done() or begun.cancelled() or begun.exception() is not None:
            return None
        found: list[bool] = begun.result()
        return found

    def has_times(self, case: Case) -> bool:
        """Returns whether `expected_us` of a case waits for nothing. Begins with it otherwise."""
        return self._asked(_timed, case).done()

    def forget(self, workload: Workload) -> None:
        """Drops what was begun for a workload: its search has ended."""
        for key in list(self._begun):  # other searches begin theirs meanwhile
            if key[1][1] == str(workload) and (begun := self._begun.pop(key, None)):
                begun.cancel()

    def _asked(self, task: Callable[[_Named], Any], case: Case) -> Future[Any]:
        """The answer of a task, which begins unless it was begun before."""
        key = task.__name__, _named(case)
        if (begun := self._begun.get(key)) is None:
            begun = self._begun[key] = self._submitted(task, case)
        return begun

    def _submitted(self, task: Callable[[_Named], Any], case: Case) -> Future[Any]:
        place = self._places.setdefault(case.kernel.name, len(self._places))
        workers = self._workers[place % len(self._workers)]
        return workers.submit(task, (_named(case),), LIMIT_S)

    def _result(self, task: Callable[[_Named], Any], case: Case) -> Any:
        begun = self._asked(task, case)
        if task is not _timed:
            self._begun.pop((task.__name__, _named(case)), None)
        try:
            return begun.result()
        except (TimeoutError, ProcessLost, TaskRaised, CancelledError):
            return None


def _named(case: Case) -> _Named:
    return case.kernel.name, str(case.workload), case.target


def _read(case: Case, found: Any) -> Feasible:
    """The answer of `_listed`; without one, the configs are listed here."""
    if found is None:
        return case.feasible()
    positions, refused = found
    return Feasible(ConfigTable(case.kernel.space.parameters, positions), refused)


def _listed(named: _Named) -> tuple[Positions, dict[str, int]]:
    """Runs in the process: the positions of the configs' values, and the refusals."""
    found, parameters = _feasible(named), _case(named).kernel.space.parameters
    return ConfigTable.of(parameters, found.configs).positions, dict(found.refused)


def _timed(named: _Named) -> array[float]:
    """Runs in the process: the expected times in us, in the order of `_listed`."""
    return array("d", (e.time_us for e in estimates(_case(named), _feasible(named).configs)))


def _seen(named: _Named) -> list[bool]:
    """Runs in the process: see `compiled_before.compiler_sees`."""
    return compiler_sees(_case(named), _feasible(named).configs)


@functools.lru_cache(_KEPT)
def _feasible(named: _Named) -> Feasible:
    return _case(named).feasible()


def _case(named: _Named) -> Case:
    kernel, workload, target = named
    return Case(kernels.load(kernel), Workload.parse(workload), target)
