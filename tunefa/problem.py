"""What a strategy is told of a kernel's space before the first trial."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tunefa import lookup, model
from tunefa.errors import TunefaError
from tunefa.kernel import Kernel
from tunefa.space import Feasible
from tunefa.store import Store
from tunefa.strategies import Problem
from tunefa.trial import Config

if TYPE_CHECKING:  # it imports this module
    from tunefa.search import Request


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


def of(request: Request, kernel: Kernel, feasible: Feasible, known: Sequence[Config]) -> Problem:
    """The feasible configs with the model's expectations; `known` ones are worth trying first."""
    return Problem(
        parameters=kernel.space.parameters,
        configs=feasible.configs,
        expected_us=[_expected_us(request, kernel, config) for config in feasible.configs],
        first=known,
        trials=request.budget.trials,
        seed=request.seed,
    )


def known_configs(request: Request, kernel: Kernel, store: Store) -> list[Config]:
    """What the store holds for the nearest workload, and the kernel's default, if there are any."""
    device = request.device.name if request.measured else None
    known: list[Config] = []
    with contextlib.suppress(TunefaError):
        choice = lookup.lookup(store, request.workload, request.arch, device, [kernel])
        known.append(choice.config)
        known.append(kernel.default(request.workload, request.arch))
    return known


def _expected_us(request: Request, kernel: Kernel, config: Config) -> float:
    """The model's time before any compiler has seen the config."""
    estimate = kernel.space.estimate(config, request.workload, request.arch)
    smem_bytes, registers = int(estimate.get("smem_bytes", 0)), int(estimate.get("registers", 0))
    tiling = kernel.space.tiling(config, request.workload, request.arch)
    resources = model.expected_resources(request.arch, tiling, smem_bytes, registers)
    return model.predict(request.workload, request.arch, request.device, tiling, resources).time_us
