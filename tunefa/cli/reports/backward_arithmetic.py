"""Writes the cycles of a step of attention's gradients as formulas with numbers, as `arithmetic`
does for the forward pass."""

from __future__ import annotations

from tunefa.costmodel import backward_step
from tunefa.costmodel.backward_step import SLOTS_PER_SCORE, Work
from tunefa.costmodel.gpu import ISSUE_LANES, SLOTS_PER_COPY, SPILL_TRIPS, Prediction
from tunefa.spec.arch import GpuArch
from tunefa.spec.tiling import BackwardTiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload


def size(tiling: BackwardTiling) -> str:
    """Returns the size of a step."""
    said = f"M = {tiling.block_m} queries by N = {tiling.block_n} keys"
    if tiling.adds_dq:
        return said
    return f"{said}, and for dQ as many scores of {tiling.dq_block_m} by {tiling.dq_block_n}"


def cycle_lines(
    workload: Workload,
    arch: GpuArch,
    tiling: BackwardTiling,
    resources: Resources,
    found: Prediction,
) -> dict[str, tuple[str, str]]:
    """The formula of one step's cycles and its numbers, by pipe.

    `arch` must have the tensor rates of the device.
    """
    works = [backward_step.of_keys(workload, arch, tiling)]
    if not tiling.adds_dq:
        works.append(backward_step.of_queries(workload, arch, tiling))
    kinds = len(works)
    times = [works[0].scores / work.scores for work in works]
    smem_clock = f"{arch.smem_bytes_per_clock_per_sm:,.0f}"
    smem = " + ".join(f"{_times(n)}{work.smem:,.0f}" for n, work in zip(times, works, strict=True))
    special = kinds * (1 + workload.softcap)
    spilled, threads = resources.spill_bytes or 0, 32 * tiling.warps
    return {
        "tensor": _tensor(tiling, works),
        "exp2": (
            f"{_times(special)}M N / exp2 per clock of an SM",
            f"{_times(special)}{tiling.block_m} x {tiling.block_n} / "
            f"{arch.exp2_per_clock_per_sm:,.0f}",
        ),
        "issue": _issue(tiling, works, times, found),
        "smem": (
            "bytes of Q, dO, K, V, dS and dQ written and read / bytes per clock",
            f"({smem}) / {smem_clock}" if kinds > 1 else f"{smem} / {smem_clock}",
        ),
        "spills": (
            f"{SPILL_TRIPS:.0f} x bytes spilled per thread x threads / bytes per clock",
            f"{SPILL_TRIPS} x {spilled:,} x {threads} x {sum(times):.6g} / {smem_clock}",
        ),
    }  # fmt: skip


def _times(count: float) -> str:
    """Writes a factor, if it is not 1."""
    return "" if count == 1 else f"{count:.6g} x "


def _tensor(tiling: BackwardTiling, works: list[Work]) -> tuple[str, str]:
    formulas, numbers = [], []
    for work in works:
        of_dim, of_dim_v = work.products
        formulas.append(f"2 M N ({of_dim} D + {'' if of_dim_v == 1 else f'{of_dim_v} '}Dv)")
        columns = of_dim * tiling.columns + of_dim_v * tiling.columns_v
        numbers.append(
            f"2 x {tiling.block_m} x {tiling.block_n} x ({of_dim} x {tiling.columns} + "
            f"{of_dim_v} x {tiling.columns_v}) / {2 * work.scores * columns / work.tensor:,.6g}"
        )
    both = f"({' + '.join(formulas)})" if len(works) > 1 else formulas[0]
    return f"{both} / FLOP per clock of an SM", " + ".join(numbers)


def _issue(
    tiling: BackwardTiling, works: list[Work], times: list[float], found: Prediction
) -> tuple[str, str]:
    scores, kinds = tiling.block_m * tiling.block_n, len(works)
    slots = kinds * SLOTS_PER_SCORE * scores
    formula = f"({_times(kinds)}{SLOTS_PER_SCORE} M N"
    numbers = f"({_times(kinds)}{SLOTS_PER_SCORE} x {tiling.block_m} x {tiling.block_n}"
    if stored := works[0].stored:
        slots, formula = slots + stored, f"{formula} + stores"
        numbers += f" + {stored:,.0f}"
    if tiling.copied_by_threads:
        copies = sum(n * work.loaded / 16 for n, work in zip(times, works, strict=True))
        slots, formula = slots + SLOTS_PER_COPY * copies, f"{formula} + {SLOTS_PER_COPY:.0f} copies"
        numbers += f" + {SLOTS_PER_COPY:.0f} x {copies:,.0f}"
    more = found.cycles_per_step["issue"] * ISSUE_LANES - slots
    if more >= 0.5:
        formula, numbers = f"{formula} + masks and soft-caps", f"{numbers} + {more:,.0f}"
    return f"{formula}) / {ISSUE_LANES} lanes", f"{numbers}) / {ISSUE_LANES}"
