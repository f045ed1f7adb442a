"""Writes the cycles of a matrix product as formulas with numbers, as `arithmetic` does for
attention."""

from __future__ import annotations

from tunefa.costmodel import matmul as model
from tunefa.costmodel.gpu import ISSUE_LANES, SLOTS_PER_COPY, SPILL_TRIPS
from tunefa.spec.arch import GpuArch
from tunefa.spec.matmul import DTYPES, Matmul
from tunefa.spec.tiling import MatmulTiling
from tunefa.spec.trial import Resources


def cycle_lines(
    workload: Matmul, arch: GpuArch, tiling: MatmulTiling, resources: Resources
) -> dict[str, tuple[str, str]]:
    """The formula of one step's cycles and its numbers, by pipe.

    `arch` must have the tensor rates of the device.
    """
    size, wgmma = DTYPES[workload.dtype], model.uses_wgmma(arch, tiling)
    a_bytes, b_bytes = (block * tiling.block_k * size for block in (tiling.block_m, tiling.block_n))
    dtype = "tf32" if workload.dtype == "fp32" else workload.dtype
    rate = f"{arch.tensor_flops_per_clock_per_sm[dtype]:,.0f}"
    if "wgmma" in arch.features and not wgmma:  # mma.sync reaches a part of Hopper's rate
        rate += f" / {model.MMA_SYNC_RATE_ON_HOPPER}"
    smem_clock = f"{arch.smem_bytes_per_clock_per_sm:,.0f}"
    rows, columns = model.warp_grid(tiling)
    readers = ("columns of warps", str(columns)), ("rows of warps", str(rows))
    if wgmma:
        readers = ("1", "1"), ("M / 64", f"{tiling.block_m} / 64")
    (a_named, a_count), (b_named, b_count) = readers
    return {
        "tensor": (
            "2 M N K / FLOP per clock of an SM",
            f"2 x {tiling.block_m} x {tiling.block_n} x {tiling.block_k} / {rate}",
        ),
        "issue": (
            f"{SLOTS_PER_COPY:.0f} x copies of 16 bytes / {ISSUE_LANES} lanes",
            f"{SLOTS_PER_COPY} x {(a_bytes + b_bytes) // 16:,} / {ISSUE_LANES}",
        ),
        "smem": (
            f"(A bytes x (1 + {a_named}) + B bytes x (1 + {b_named})) / bytes per clock",
            f"({a_bytes:,} x (1 + {a_count}) + {b_bytes:,} x (1 + {b_count})) / {smem_clock}",
        ),
        "spills": (
            f"{SPILL_TRIPS:.0f} x bytes spilled per thread x threads / bytes per clock",
            f"{SPILL_TRIPS} x {resources.spill_bytes or 0:,} x {tiling.threads} / {smem_clock}",
        ),
    }
