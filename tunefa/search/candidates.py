"""The configs that a search chooses among, and what is expected of them before the first trial."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunefa.compile import languages
from tunefa.costmodel.expected_time import expected_us
from tunefa.errors import TunefaError
from tunefa.measure import npu as npu_objectives
from tunefa.search.request import Request
from tunefa.search.strategy import SearchProblem
from tunefa.spec.arch import NpuArch
from tunefa.spec.arch_catalog import npu
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, identity
from tunefa.store import lookup
from tunefa.store.results import Store

_SAME = "the config must not compile to the same code as another one"


def feasible_by_kernel(request: Request) -> dict[str, Feasible]:
    """By kernel, what the rules leave of its space.

    Raises TunefaError with each rule's refusals where no kernel has a feasible config.
    """
    feasible = {kernel.name: _feasible(request, request.case(kernel)) for kernel in request.kernels}
    if any(found.configs for found in feasible.values()):
        return feasible
    refusals = "; ".join(
        f"{name}: "
        + ", ".join(f"{rule} ({count})" for rule, count in found.refused.items() if count)
        for name, found in feasible.items()
    )
    raise TunefaError(
        f"every config for {request.workload} on {request.target.arch.name} is refused ({refusals})"
    )


def _feasible(request: Request, case: Case) -> Feasible:
    """What the rules leave of a kernel's space; of configs that are one trial, the first."""
    timed = request.measured or request.replay is not None
    space = case.kernel.space if timed else case.kernel.space.untimed()
    found = space.feasible(case.workload, case.arch)
    key = getattr(languages.load(case.kernel.language), "trial_key", None)
    if key is None or timed:
        return found
    distinct: dict[Hashable, dict[str, Any]] = {}
    for config in found.configs:
        distinct.setdefault(key(case, config), config)
    same = len(found.configs) - len(distinct)
    return Feasible(tuple(distinct.values()), {**found.refused, _SAME: same})


def check_interpreters(request: Request) -> None:
    """Raises TunefaError where a winner is to be checked in an interpreter that does not run."""
    if request.objective != "predicted":
        return
    for kernel in request.kernels:
        reason = languages.load(kernel.language).why_no_interpreter()
        if reason and languages.has_interpreter(kernel.language):
            raise TunefaError(f"the winner could not be checked: {reason}")


def by_predicted_time(cases: Sequence[Case], feasible: Mapping[str, Feasible]) -> list[Case]:
    """The cases, first that whose kernel the cost model expects to be the fastest; equals as they
    were.

    A kernel's default stands for it, which was measured to be good. What the model likes best of a
    large space is its most flattering mistake, and stands for a kernel without a default only: on
    the eight landscapes it named the faster of two kernels six times, the defaults seven times.
    """

    def predicted_us(case: Case) -> float:
        config = default(case)
        configs = feasible[case.kernel.name].configs if config is None else [config]
        times = (expected_us(case, config) for config in configs)
        return min((us for us in times if us > 0), default=math.inf)

    return sorted(cases, key=predicted_us)


def search_problem(
    request: Request,
    case: Case,
    feasible: Feasible,
    known: Sequence[Config],
    trials: int | None,
) -> SearchProblem:
    """The feasible configs with the model's expectations; `known` ones are worth trying first.

    `trials` is what this kernel may use of a budget of trials.
    """
    made = SearchProblem(
        parameters=case.kernel.space.parameters,
        configs=feasible.configs,
        expected_us=list(_all_expected_us(case, feasible.configs)),
        first=known,
        trials=trials,
        seed=request.seed,
    )
    if not isinstance(case.arch, NpuArch):
        return made
    room = [_room(case, config) for config in feasible.configs]
    exact = not request.measured  # the same latency model says both times
    return replace(made, room=room, exact=exact, memories=tuple(case.arch.capacities))


def faster_untried(
    request: Request,
    feasible: Mapping[str, Feasible],
    tried: Collection[tuple[str, tuple[object, ...]]],
    best_us: float,
) -> int:
    """Configs that an NPU's latency model says are faster, of which no compiler has said that they
    do not fit; `tried` are kernels' names and configs' identities."""
    return sum(
        us < best_us and (kernel.name, identity(config)) not in tried
        for kernel in request.kernels
        for config, us in zip(
            feasible[kernel.name].configs,
            _all_expected_us(request.case(kernel), feasible[kernel.name].configs),
            strict=True,
        )
    )


def default(case: Case) -> Config | None:
    """The kernel's default; None where it has none."""
    with contextlib.suppress(TunefaError):
        return case.default()
    return None


def known_configs(request: Request, case: Case, store: Store) -> list[Config]:
    """What the store holds for the nearest workload, and the kernel's default, if there are any."""
    known: list[Config] = []
    with contextlib.suppress(TunefaError):
        here = request.measured
        choice = lookup.lookup(store, case.workload, case.target, [case.kernel], here=here)
        known.append(choice.config)
        known.append(case.default())
    return known


def _all_expected_us(case: Case, configs: Sequence[Config]) -> Iterator[float]:
    """The expected time of each config; the model is asked once for those that it sees no
    difference between."""
    known: dict[tuple[object, ...], float] = {}
    for config in configs:
        seen = tuple(config[name] for name in case.kernel.space.seen_by_cost_model)
        if seen not in known:
            known[seen] = expected_us(case, config)
        yield known[seen]


def _room(case: Case, config: Config) -> float:
    """The free part of the memory of an NPU that formulas expect to be the fullest."""
    arch = npu(case.arch)
    resources = npu_objectives.estimated(case.npu_tiling(config), arch)
    planned = resources.planned
    return -max(planned.excess.values()) if planned else 0.0
