"""The features of configs: the numbers from which a learned model predicts what the cost model of
GPUs misses.

A feature describes a config, its resources or how it cuts the work, and no workload by its name: so
a model sees a new workload as a new mixture of what it knows. Times are relative to one another,
and the chip counts only through ratios, such as of computing time to memory time. Logarithms are
natural ones.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tunefa.costmodel import gpu as gpu_model
from tunefa.costmodel.gpu import Cut, Prediction
from tunefa.costmodel.roofline import kv_bytes
from tunefa.spec.arch_catalog import gpu
from tunefa.spec.rounding import ceil_div
from tunefa.spec.space import Space
from tunefa.spec.target import Case
from tunefa.spec.tiling import Tiling
from tunefa.spec.trial import Config, Resources
from tunefa.spec.workload import DTYPES, Workload

Table = npt.NDArray[np.float32]
_MOST_WAVES = 20.0
"""Beyond so many tiles on each SM, their number makes no difference to the last wave."""


@dataclass(frozen=True)
class Features:
    """The features of several configs of one case."""

    names: tuple[str, ...]
    values: Table
    """A row for each config, a column for each name."""
    analytic_us: npt.NDArray[np.float64]
    """The times of the cost model; infinity where a config cannot run."""


def features(
    case: Case, configs: Sequence[Config], resources: Sequence[Resources | None] | None = None
) -> Features:
    """Returns the features of configs, with the compiler's resources or, for None, expected ones.

    The cost model is asked once for configs that differ only in parameters that it does not know.
    """
    space = case.kernel.space
    given = resources or [None] * len(configs)
    known: dict[Hashable, int] = {}
    found: list[tuple[float, Mapping[str, float]]] = []
    places = np.empty(len(configs), dtype=np.intp)
    keys = model_keys(case, configs, given)
    for place, (config, needed, key) in enumerate(zip(configs, given, keys, strict=True)):
        if key not in known:
            known[key] = len(found)
            found.append(of_config(case, config, needed))
        places[place] = known[key]
    names = tuple(found[0][1]) if found else ()
    derived = np.array([[*row.values()] for _, row in found], dtype=np.float32)
    times = np.array([us for us, _ in found], dtype=float)
    own = parameters(space, configs)
    titles = (*(parameter.name for parameter in space.parameters), *names)
    return Features(
        titles, np.hstack([own, derived.reshape(len(found), len(names))[places]]), times[places]
    )


def model_keys(
    case: Case, configs: Sequence[Config], resources: Sequence[Resources | None]
) -> list[Hashable]:
    """Returns a key for each config, with the compiler's resources or None. The cost model does not
    tell configs with equal keys apart."""
    seen = case.kernel.space.seen_by_cost_model
    return [
        (*[config[name] for name in seen], needed and _counted(needed))
        for config, needed in zip(configs, resources, strict=True)
    ]


def _counted(resources: Resources) -> tuple[int | None, ...]:
    return resources.smem_bytes, resources.registers, resources.spill_bytes


def parameters(space: Space, configs: Sequence[Config]) -> Table:
    """Returns the values of the parameters; for one whose values are no numbers, their places."""
    columns = []
    for parameter in space.parameters:
        numeric = all(isinstance(value, int | float) for value in parameter.values)
        code = {value: float(value if numeric else i) for i, value in enumerate(parameter.values)}
        columns.append([code[config[parameter.name]] for config in configs])
    return np.array(columns, dtype=np.float32).reshape(len(columns), len(configs)).T


def of_config(
    case: Case, config: Config, resources: Resources | None
) -> tuple[float, Mapping[str, float]]:
    """Returns the cost model's time of a config, and its features.

    Those of a config that cannot run are finite and mean nothing.
    """
    arch = gpu(case.arch)
    tiling, lower = case.tiling_and_estimate(config)
    if resources is None:
        smem_bytes, registers = int(lower.get("smem_bytes", 0)), int(lower.get("registers", 0))
        resources = gpu_model.expected_resources(arch, tiling, smem_bytes, registers)
    workload = case.workload.dense_equivalent
    predicted = gpu_model.predict(workload, arch, case.device, tiling, resources)
    cut = gpu_model.cut_of(workload, tiling)
    return predicted.time_us, {
        **_tile(tiling, resources, predicted),
        **_pipes(case, predicted),
        **_schedule(case, workload, tiling, cut, predicted),
        **_problem(case, workload, tiling),
    }


def _tile(tiling: Tiling, resources: Resources, predicted: Prediction) -> dict[str, float]:
    """The features of what one CTA holds."""
    return {
        "tile rows": tiling.block_m,
        "tile keys": tiling.block_n,
        "columns": tiling.columns,
        "columns of v": tiling.columns_v,
        "warps": tiling.warps,
        "stages": tiling.stages,
        "log scores per thread": _log(tiling.block_m * tiling.block_n / tiling.threads),
        "shared memory, KiB": (resources.smem_bytes or 0) / 1024,
        "registers": resources.registers or 0,
        "log spills": math.log1p(resources.spill_bytes or 0),
        "CTAs per SM": predicted.occupancy.blocks_per_sm,
    }


def _pipes(case: Case, predicted: Prediction) -> dict[str, float]:
    """The cycles of the pipes in one step, and the times of the memories, all relative."""
    cycles = {name: _log(value) for name, value in predicted.cycles_per_step.items()}
    compute_us = predicted.compute_us
    whole = _log(compute_us * case.device.boost_mhz / max(predicted.steps, 1e-9))
    return {
        "log cycles per step": whole,
        "log tensor cycles": cycles["tensor"],
        "log issue cycles": cycles["issue"],
        "tensor share": cycles["tensor"] - whole,
        "exp2 to tensor": cycles["exp2"] - cycles["tensor"],
        "issue to tensor": cycles["issue"] - cycles["tensor"],
        "smem to tensor": cycles["smem"] - cycles["tensor"],
        "log spill cycles": math.log1p(predicted.cycles_per_step["spills"]),
        "L2 to compute": _log(predicted.l2_us) - _log(compute_us),
        "HBM to compute": _log(predicted.hbm_us) - _log(compute_us),
    }


def _schedule(
    case: Case, workload: Workload, tiling: Tiling, cut: Cut, predicted: Prediction
) -> dict[str, float]:
    """The features of how the tiles fill the SMs."""
    per_sm = cut.tiles / case.device.sms
    waves = per_sm / max(1, predicted.occupancy.blocks_per_sm)
    rows = workload.seqlen_q * tiling.packed_heads
    tiles_of_head = ceil_div(rows, tiling.block_m)
    covered = ceil_div(workload.seqlen_k, tiling.block_n) * tiling.block_n
    return {
        "log tiles per SM": _log(per_sm),
        "tiles per SM": min(per_sm, _MOST_WAVES),
        "loss of the last tile": math.ceil(per_sm) / per_sm,
        "loss of the last wave": math.ceil(waves) / waves,
        "log steps per tile": _log(cut.steps_per_tile),
        "masked share": cut.masked_steps_per_tile / max(cut.steps_per_tile, 1e-9),
        "padding of rows": _log(tiles_of_head * tiling.block_m / rows),
        "padding of keys": _log(covered / workload.seqlen_k),
        "log tiles of a head": _log(tiles_of_head),
        "log heads of a section": _log(tiling.l2_section_heads),
    }


def _problem(case: Case, workload: Workload, tiling: Tiling) -> dict[str, float]:
    """The features of the workload, apart from its size."""
    return {
        "bytes of the dtype": DTYPES[workload.dtype],
        "causal": float(workload.causal),
        "log group": _log(workload.group),
        "padding of columns": _log(tiling.columns / workload.head_dim),
        "log K and V to L2": _log(kv_bytes(workload) / case.device.l2_bytes),
    }


def _log(value: float) -> float:
    return math.log(value if 1e-9 < value < 1e30 else min(max(value, 1e-9), 1e30))
