"""What a strategy is told of a kernel's space before the first trial."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tunefa import languages, lookup, modelled, strategies, transfer
from tunefa.arch import NpuArch, npu
from tunefa.errors import TunefaError
from tunefa.kernel import Kernel
from tunefa.space import Feasible
from tunefa.store import Store
from tunefa.strategies import Problem
from tunefa.trial import Config

if TYPE_CHECKING:  # it imports this module
    from tunefa.search import Request


_SAME = "what is compiled is the same as another's"


def feasible(request: Request, kernel: Kernel) -> Feasible:
    """What the rules leave of the kernel's space, and of configs that are one trial the first."""
    timed = request.measured or request.replay is not None
    space = kernel.space if timed else kernel.space.untimed()
    found = space.feasible(request.workload, request.arch)
    key = getattr(languages.load(kernel.language), "trial_key", None)
    if key is None or timed:
        return found
    distinct: dict[Hashable, dict[str, Any]] = {}
    for config in found.configs:
        distinct.setdefault(key(kernel, request.workload, config), config)
    same = len(found.configs) - len(distinct)
    return Feasible(tuple(distinct.values()), {**found.refused, _SAME: same})


def check_feasible(request: Request, feasible: Mapping[str, Feasible]) -> None:
    """Raises TunefaError with each rule's refusals where no kernel has a feasible config."""
    if any(found.configs for found in feasible.values()):
        return
    refusals = "; ".join(
        f"{name}: "
        + ", ".join(f"{rule} ({count})" for rule, count in found.refused.items() if count)
        for name, found in feasible.items()
    )
    raise TunefaError(
        f"every config for {request.workload} on {request.arch.name} is refused ({refusals})"
    )


def check_interpreters(request: Request) -> None:
    """Raises TunefaError where a winner is to be checked in an interpreter that does not run."""
    if request.objective != "predicted":
        return
    for kernel in request.kernels:
        reason = languages.load(kernel.language).why_no_interpreter()
        if reason and languages.has_interpreter(kernel.language):
            raise TunefaError(f"the winner could not be checked: {reason}")


def by_promise(
    request: Request, kernels: Sequence[Kernel], feasible: Mapping[str, Feasible]
) -> list[Kernel]:
    """The kernels, first the one that the model expects to be the fastest; equals as they were.

    A kernel's default stands for it, which was measured to be good. What the model likes best of a
    large space is its most flattering mistake, and stands for a kernel without a default only: on
    the eight landscapes it named the faster of two kernels six times, the defaults seven times.
    """

    def promised_us(kernel: Kernel) -> float:
        config = default(request, kernel)
        configs = feasible[kernel.name].configs if config is None else [config]
        times = (_expected_us(request, kernel, config) for config in configs)
        return min((us for us in times if us > 0), default=math.inf)

    return sorted(kernels, key=promised_us)


def of(
    request: Request,
    kernel: Kernel,
    feasible: Feasible,
    known: Sequence[Config],
    trials: int | None,
) -> Problem:
    """The feasible configs with the model's expectations; `known` ones are worth trying first.

    `trials` is what this kernel may use of a budget of trials.
    """
    made = Problem(
        parameters=kernel.space.parameters,
        configs=feasible.configs,
        expected_us=list(_all_expected_us(request, kernel, feasible.configs)),
        first=known,
        trials=trials,
        seed=request.seed,
    )
    if not isinstance(request.arch, NpuArch):
        return made
    room = [_room(request, kernel, config) for config in feasible.configs]
    exact = not request.measured  # the same law says both times
    return replace(made, room=room, exact=exact, memories=tuple(request.arch.capacities))


def faster_untried(
    request: Request,
    feasible: Mapping[str, Feasible],
    tried: Collection[tuple[str, tuple[object, ...]]],
    best_us: float,
) -> int:
    """Configs that the law for NPUs says are faster, of which no compiler has said that they do not
    fit; `tried` are kernels' names and configs' identities."""
    return sum(
        us < best_us and (kernel.name, strategies.identity(config)) not in tried
        for kernel in request.kernels
        for config, us in zip(
            feasible[kernel.name].configs,
            _all_expected_us(request, kernel, feasible[kernel.name].configs),
            strict=True,
        )
    )


def default(request: Request, kernel: Kernel) -> Config | None:
    """The kernel's default; None where it has none."""
    with contextlib.suppress(TunefaError):
        return kernel.default(request.workload, request.arch)
    return None


def known_configs(request: Request, kernel: Kernel, store: Store) -> list[Config]:
    """What the store holds for the nearest workload, and the kernel's default, if there are any."""
    device = request.device.name if request.measured else None
    known: list[Config] = []
    with contextlib.suppress(TunefaError):
        choice = lookup.lookup(store, request.workload, request.arch, device, [kernel])
        known.append(choice.config)
        known.append(kernel.default(request.workload, request.arch))
    return known


def _all_expected_us(
    request: Request, kernel: Kernel, configs: Sequence[Config]
) -> Iterator[float]:
    """Of each config; the model is asked once for those that it sees no difference between."""
    known: dict[tuple[object, ...], float] = {}
    for config in configs:
        seen = tuple(config[name] for name in kernel.space.modelled)
        if seen not in known:
            known[seen] = _expected_us(request, kernel, config)
        yield known[seen]


def _room(request: Request, kernel: Kernel, config: Config) -> float:
    """Of the memory of an NPU that formulas expect to be the fullest."""
    arch = npu(request.arch)
    resources = modelled.estimated(kernel.space.npu_tiling(config, request.workload, arch), arch)
    planned = resources.planned
    return -max(planned.excess.values()) if planned else 0.0


def _expected_us(request: Request, kernel: Kernel, config: Config) -> float:
    return transfer.expected_us(kernel, config, request.workload, request.arch, request.device)
