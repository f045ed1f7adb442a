"""The grid of tiles of a kernel: for BLOCK_M and BLOCK_N the best config, or why there is none.

The model expects some configs to be fastest with a tile, before compiling. Those with the best two
numbers of threads are compiled, so that resources are the compiler's; where the GPU is there they
are also checked and timed. The faster one stands for the tile.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tunefa.compile import languages
from tunefa.costmodel.estimate import estimates
from tunefa.costmodel.ranking import rank_us
from tunefa.errors import TunefaError
from tunefa.experiments.document import Row
from tunefa.measure.predicted import Predicted
from tunefa.spec import kernel as kernels
from tunefa.spec.space import Space
from tunefa.spec.target import Case, Target
from tunefa.spec.trial import Config, Resources, Trial, identity
from tunefa.spec.workload import Workload

PREFERRED = "attention_fwd_triton"
"""The kernel whose tiles are looked at, where it serves: its tiles are the most free."""
SIDES = (("BLOCK_M", "BLOCK_N"), ("WARPGROUPS", "BLOCK_N"))
"""The parameters of queries and of keys, of the kernels that have them. A consumer warpgroup has 64
rows of queries."""
CANDIDATES = 2
"""Configs that stand for a cell until they are compiled, each with another number of threads: the
model does not foresee all spills."""
MOST_COMPILED = 32
"""Cells that are compiled, those of the least expected time first. The others keep lower bounds."""
COMPILE_S, MEASURE_S = 120.0, 240.0
"""The time after which the remaining cells keep the model's figures."""


def case_of(workload: Workload, target: Target) -> Case:
    """Returns the kernel whose tiles are looked at: the preferred one, else the first that serves
    the workload and has both parameters. Raises TunefaError where none does."""
    serving = kernels.serving(workload, target.arch)
    served = sorted(serving, key=lambda kernel: kernel.name != PREFERRED)
    for kernel in served:
        if sides_of(kernel.space) is not None:
            return Case(kernel, workload, target)
    raise TunefaError(f"no kernel with BLOCK_M and BLOCK_N serves {workload} on {target.arch.name}")


def sides_of(space: Space) -> tuple[str, str] | None:
    """Returns the names of the parameters of queries and of keys; None without them."""
    names = {parameter.name for parameter in space.parameters}
    return next((pair for pair in SIDES if names.issuperset(pair)), None)


MakeObjective = Callable[[Case], AbstractContextManager[Predicted]]


@dataclass
class _Cell:
    """One tile: the configs that stand for it, the best first, or one trial that is no success."""

    sides: tuple[int, int]
    trials: list[Trial]
    is_compiled: bool = False

    @property
    def best(self) -> Trial:
        """The fastest trial; of those that do not run, the first."""
        ran = [trial for trial in self.trials if trial.outcome == "ok"]
        return min(ran, key=rank_us) if ran else self.trials[0]


def cells(case: Case, objective: MakeObjective | None) -> list[Row]:
    """Returns a row for each cell, with figures of an objective, `Predicted` or `Measured`; with
    lower bounds and the model's time alone for None."""
    found = [_cell(case, *pair, configs) for pair, configs in _grid(case).items()]
    if objective is not None:
        with objective(case) as judge:
            _judge(found, judge)
    return [_row(case, cell) for cell in found]


def _grid(case: Case) -> dict[tuple[int, int], list[Config]]:
    """The configs of each cell that no rule refuses."""
    names = sides_of(case.kernel.space)
    assert names is not None
    values = {p.name: p.values for p in case.kernel.space.parameters}
    grid: dict[tuple[int, int], list[Config]] = {
        (m, n): [] for m in values[names[0]] for n in values[names[1]]
    }
    for config in case.feasible().configs:
        grid[config[names[0]], config[names[1]]].append(config)
    return grid


def _cell(case: Case, m: int, n: int, configs: Sequence[Config]) -> _Cell:
    """The cell before compiling: for each number of threads the config that is expected to be
    fastest, of which CANDIDATES are kept."""
    if not configs:
        return _Cell((m, n), [Trial({}, "refused", _rule(case, m, n))])
    times = [each.time_us for each in estimates(case, configs)]
    fastest: dict[int, int] = {}
    for place in sorted(range(len(configs)), key=lambda place: times[place]):
        fastest.setdefault(case.tiling(configs[place]).threads, place)
        if len(fastest) == CANDIDATES:
            break
    if math.isinf(min(times)):
        reason = "the lower bounds of its resources exceed an SM"
        return _Cell((m, n), [Trial(configs[0], "refused", reason)])
    chosen = [place for place in fastest.values() if not math.isinf(times[place])]
    return _Cell((m, n), [_uncompiled(case, configs[place], times[place]) for place in chosen])


def _uncompiled(case: Case, config: Config, time_us: float) -> Trial:
    bounds = case.estimate(config)
    needs = Resources(int(bounds["smem_bytes"]), int(bounds["registers"]))
    return Trial(config, "ok", resources=needs, predicted_us=time_us)


def _rule(case: Case, m: int, n: int) -> str:
    """The rule that is the last obstacle: of the configs that break the fewest rules, the one that
    most of them break."""
    space = case.kernel.space
    names = sides_of(space)
    assert names is not None
    broken = [
        case.refusals({**config, names[0]: m, names[1]: n}) for config in _others(space, names)
    ]
    fewest = min(map(len, broken))
    counted = Counter(rule for rules in broken if len(rules) == fewest for rule in rules)
    return counted.most_common(1)[0][0]


def _others(space: Space, names: tuple[str, str]) -> list[dict[str, Any]]:
    """Every choice of the parameters that change whether a tile fits."""
    found: list[dict[str, Any]] = [{}]
    for parameter in space.parameters:
        values = parameter.values[:1] if parameter.name in names else parameter.values
        found = [{**config, parameter.name: value} for config in found for value in values]
    return found


def _judge(found: Sequence[_Cell], judge: Predicted) -> None:
    """Replaces the trials of the fastest cells by those of the objective, until time is up."""
    hopeful = [cell for cell in found if cell.best.outcome == "ok"]
    hopeful.sort(key=lambda cell: rank_us(cell.best))
    until = time.monotonic() + (MEASURE_S if judge.kind == "measured" else COMPILE_S)
    waiting: dict[object, _Cell] = {}
    for cell in hopeful[:MOST_COMPILED]:
        for trial in cell.trials:
            waiting[identity(trial.config)] = cell
            judge.submit(trial.config)
    judged: dict[tuple[int, int], list[Trial]] = {}
    while waiting and (left := until - time.monotonic()) > 0:
        done = judge.next(left)
        if done is None:
            break
        cell = waiting.pop(identity(done.config))
        judged.setdefault(cell.sides, []).append(done)
    for cell in found:
        if cell.sides in judged:
            cell.trials, cell.is_compiled = judged[cell.sides], True


def _row(case: Case, cell: _Cell) -> Row:
    trial, sides = cell.best, cell.sides
    needs = trial.resources
    return {
        "workload": str(case.workload),
        "kernel": case.kernel.name,
        "sides": list(sides_of(case.kernel.space) or ()),
        "block_m": sides[0],
        "block_n": sides[1],
        "config": dict(trial.config),
        "outcome": trial.outcome,
        "reason": trial.reason,
        "time_us": trial.median_us if trial.outcome == "ok" else None,
        "is_measured": trial.outcome == "ok" and bool(trial.samples_us),
        "is_compiled": cell.is_compiled,
        "smem_bytes": needs and needs.smem_bytes,
        "registers": needs and needs.registers,
        "spill_bytes": needs and needs.spill_bytes,
    }


def without_compiler(case: Case) -> str | None:
    """Returns why the kernel cannot be compiled here; None if it can."""
    return languages.without_compiler([case.kernel], case.arch).get(case.kernel.name)
