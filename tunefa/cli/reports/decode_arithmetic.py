"""Writes the cycles of attention over a cache as formulas with numbers, as `arithmetic` does for
the forward pass."""

from __future__ import annotations

from tunefa.costmodel import decode as model
from tunefa.spec.tiling import DecodeTiling
from tunefa.spec.workload import Workload


def size(workload: Workload, tiling: DecodeTiling) -> str:
    """The size of a step in words, and the splits of a sequence."""
    keys = workload.rows_and_keys[1] // workload.batch
    cuts = [f"{splits:,} x {each:,}" for splits, each in tiling.splits(keys)]
    best = ", the best for the batch" if len(cuts) > 1 else ""
    return (
        f"M = {tiling.block_m} query rows by N = {tiling.block_n} keys; splits x keys of a "
        f"sequence: {' or '.join(cuts)}{best}"
    )


def cycle_lines(tiling: DecodeTiling) -> dict[str, tuple[str, str]]:
    """The formula of one step's cycles and its numbers, by pipe."""
    columns = tiling.columns + tiling.columns_v
    if tiling.by_wgmma:
        return {
            "warps": (
                f"2 x M x N x (D + Dv) / FLOPs per clock + {model.STEP_CYCLES:.0f}",
                f"2 x {tiling.block_m} x {tiling.block_n} x {columns} / "
                f"{model.WGMMA_FLOPS_PER_CLOCK:.0f} + {model.STEP_CYCLES:.0f}",
            )
        }
    cycles = f"{model.CYCLES_PER_KEY:.0f}"
    if tiling.copied_by_threads:
        cycles = f"({cycles} + {model.COPY_CYCLES_PER_KEY:.0f} x 16 / {tiling.block_m})"
    end = f"{model.STEP_CYCLES:.0f}"
    return {
        "warps": (
            f"cycles per key x N x M / 16 x (D + Dv) / 256 / warps + {end}",
            f"{cycles} x {tiling.block_n} x {tiling.block_m} / 16 x {columns} / 256 / "
            f"{tiling.warps} + {end}",
        )
    }
