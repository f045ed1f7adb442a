"""The configs that a search chooses among, and their expected times before the first trial."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tunefa.compile import languages
from tunefa.costmodel.before_compiling import expected_and_least_us, order_parameters
from tunefa.costmodel.estimate import estimates, expected_us, learned_parameters
from tunefa.errors import TunefaError
from tunefa.measure import npu as npu_objectives
from tunefa.search.model_process import ModelProcess
from tunefa.search.request import Request
from tunefa.search.strategy import SearchProblem
from tunefa.spec.arch import NpuArch
from tunefa.spec.arch_catalog import npu
from tunefa.spec.space import Feasible
from tunefa.spec.target import Case
from tunefa.spec.trial import Config, identity
from tunefa.store import lookup
from tunefa.store.landscape import Landscape
from tunefa.store.results import Store

_SAME = "the config must not compile to the same code as another one"
_HELD = "the landscape that is replayed must hold the config"


def feasible_by_kernel(request: Request, model: ModelProcess | None = None) -> dict[str, Feasible]:
    """The configs that the rules allow, by kernel. A replay has those of them that were recorded,
    as a landscape may be a sample of the space. `model`, which only measured searches have, lists
    them.

    Raises TunefaError with each rule's refusals where no kernel has a feasible config.
    """
    cases = [request.case(kernel) for kernel in request.kernels]
    found = model.feasible(cases) if model else [_feasible(request, case) for case in cases]
    feasible = {case.kernel.name: each for case, each in zip(cases, found, strict=True)}
    if request.replay is not None:
        replay = request.replay
        feasible = {name: _held(replay, name, found) for name, found in feasible.items()}
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
    """The configs of a kernel that the rules allow.

    Where nothing is timed, parameters whose values only a device can tell apart have their first
    value, and configs that compile to one program count once: the first of them.
    """
    timed = request.measured or request.replay is not None
    space = case.kernel.space if timed else case.kernel.space.untimed(learned_parameters(case))
    found = space.feasible(case.workload, case.arch)
    key = getattr(languages.load(case.kernel.language), "trial_key", None)
    if key is None or timed:
        return found
    distinct: dict[Hashable, dict[str, Any]] = {}
    with contextlib.redirect_stdout(sys.stderr):  # a kernel may print, and stdout is for data
        for config in found.configs:
            try:
                distinct.setdefault(key(case, config), config)
            except (Exception, SystemExit):  # code from kernels/ may raise anything
                distinct[identity(config)] = config  # its compilation says why
    same = len(found.configs) - len(distinct)
    return Feasible(tuple(distinct.values()), {**found.refused, _SAME: same})


def _held(landscape: Landscape, kernel: str, found: Feasible) -> Feasible:
    """The feasible configs that a landscape holds."""
    held = {identity(trial.config) for trial in landscape.trials(kernel)}
    configs = tuple(config for config in found.configs if identity(config) in held)
    missing = len(found.configs) - len(configs)
    return Feasible(configs, {**found.refused, **({_HELD: missing} if missing else {})})


def check_interpreters(request: Request) -> None:
    """Raises TunefaError where winners are checked in an interpreter, and it does not run here."""
    if request.objective != "predicted":
        return
    for kernel in request.kernels:
        reason = languages.load(kernel.language).why_no_interpreter()
        if reason and languages.has_interpreter(kernel.language):
            raise TunefaError(f"the winner could not be checked: {reason}")


def by_predicted_time(cases: Sequence[Case], feasible: Mapping[str, Feasible]) -> list[Case]:
    """Returns the cases in the order of their predicted times; equal ones stay in their order.

    The predicted time of a kernel is that of its default config, which was measured to be good. The
    config with the least predicted time in a large space is often the cost model's largest error,
    so it is used only for a kernel without a default. On the eight recorded landscapes it named the
    faster of two kernels six times, the defaults seven times.
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
    expected_us: Sequence[float] = (),
) -> SearchProblem:
    """The feasible configs with the times that the cost model expects; `known` ones come first.

    `trials` is this kernel's share of a budget of trials, None for a budget of seconds. Without
    `expected_us`, the cost model is asked for the times.
    """
    expected = []
    if not expected_us:
        expected = estimates(case, feasible.configs)
        expected_us = [each.time_us for each in expected]
    made = SearchProblem(
        parameters=case.kernel.space.parameters,
        configs=feasible.configs,
        expected_us=expected_us,
        first=known,
        trials=trials,
        seed=request.seed,
    )
    if request.objective == "predicted":
        both = expected_and_least_us(case, feasible.configs, expected)
        return replace(
            made,
            expected_us=[us for us, _ in both],
            least_us=[us for _, us in both],
            binaries=_binaries(case, feasible.configs),
        )
    if not isinstance(case.arch, NpuArch):
        return made
    free = [_free_memory(case, config) for config in feasible.configs]
    exact = not request.measured  # expected and final times come from the same latency model
    return replace(made, free_memory=free, exact=exact, memories=tuple(case.arch.capacities))


def faster_untried(
    request: Request,
    feasible: Mapping[str, Feasible],
    tried: Collection[tuple[str, tuple[object, ...]]],
    best_us: float,
) -> int:
    """Counts the configs that an NPU's latency model expects to take less than `best_us`, and that
    no compiler was asked about.

    `tried` are (kernel, config's identity).
    """
    return sum(
        expected.time_us < best_us and (kernel.name, identity(config)) not in tried
        for kernel in request.kernels
        for config, expected in zip(
            feasible[kernel.name].configs,
            estimates(request.case(kernel), feasible[kernel.name].configs),
            strict=True,
        )
    )


def at_level(problem: SearchProblem, factor: float) -> SearchProblem:
    """Returns the problem with all expected times multiplied by the factor of a kernel's level."""
    expected_us, least_us = (
        [factor * us for us in times] for times in (problem.expected_us, problem.least_us)
    )
    return replace(problem, expected_us=expected_us, least_us=least_us)


def default(case: Case) -> Config | None:
    """The kernel's default config; None where it has none."""
    with contextlib.suppress(TunefaError):
        return case.default()
    return None


def known_configs(request: Request, case: Case, store: Store) -> list[Config]:
    """The store's config for the nearest workload and the kernel's default, where they exist."""
    known: list[Config] = []
    with contextlib.suppress(TunefaError):
        choice = lookup.lookup(store, case.workload, case.target, [case.kernel])
        known.append(choice.config)
        known.append(case.default())
    return known


def _binaries(case: Case, configs: Sequence[Config]) -> list[Hashable]:
    """The part of a config that the compiler sees: equal for configs that compile to one binary."""
    unseen = set(order_parameters(case.kernel.space))
    return [tuple(v for name, v in config.items() if name not in unseen) for config in configs]


def _free_memory(case: Case, config: Config) -> float:
    """The free fraction of the fullest NPU memory by formulas; below 0 if it is exceeded."""
    arch = npu(case.arch)
    resources = npu_objectives.estimated(case.npu_tiling(config), arch)
    planned = resources.planned
    return -max(planned.excess.values()) if planned else 0.0
