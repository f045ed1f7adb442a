"""Writes occupancy and cycles as formulas with numbers, which a reader can check with a calculator.

Each line gives the figure of `tunefa.costmodel`. A test computes the printed formulas and compares.
"""

from __future__ import annotations

from tunefa.cli.reports.text import plural
from tunefa.costmodel import gpu as gpu_model
from tunefa.costmodel.gpu import Prediction
from tunefa.costmodel.occupancy import Occupancy
from tunefa.spec.arch import GpuArch
from tunefa.spec.rounding import ceil_div, round_up
from tunefa.spec.tiling import Tiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import DTYPES, Workload


def occupancy_lines(
    arch: GpuArch, resources: Resources, threads: int, found: Occupancy
) -> dict[str, str]:
    """The CTAs of an SM by limit: "threads", "registers", "smem", "blocks" and maybe "grid"."""
    lines = {
        "threads": _threads(arch, threads, found.limits["threads"]),
        "registers": _registers(
            arch, max(1, resources.registers or 0), threads, found.limits["registers"]
        ),
        "smem": _smem(arch, resources.smem_bytes or 0, found.limits["smem"]),
        "blocks": f"at most {plural(found.limits['blocks'], 'CTA')} per SM",
    }
    if "grid" in found.limits:
        lines["grid"] = "the kernel starts no more CTAs than there are SMs = 1 CTA"
    return lines


def _threads(arch: GpuArch, threads: int, ctas: int) -> str:
    if threads > arch.max_threads_per_block:
        return (
            f"{threads:,} threads, more than the {arch.max_threads_per_block:,} of a CTA = 0 CTAs"
        )
    warps = ceil_div(threads, arch.warp_size)
    return (
        f"{threads:,} threads / {arch.warp_size} = {plural(warps, 'warp')}; "
        f"{arch.max_warps_per_sm} warps per SM / {warps} = {plural(ctas, 'CTA')}"
    )


def _registers(arch: GpuArch, registers: int, threads: int, ctas: int) -> str:
    if registers > arch.max_registers_per_thread:
        most = arch.max_registers_per_thread
        return f"{registers} registers per thread, more than the limit of {most} = 0 CTAs"
    parts = arch.register_partitions_per_sm
    per_warp = round_up(registers * arch.warp_size, arch.register_allocation_unit)
    warps = ceil_div(threads, arch.warp_size)
    needed = per_warp * round_up(warps, parts)
    begin = f"{registers} per thread x {arch.warp_size}, rounded to {per_warp:,} per warp; "
    if needed > arch.registers_per_sm:
        return (
            f"{begin}{round_up(warps, parts)} warps x {per_warp:,} = {needed:,}, more than the "
            f"{arch.registers_per_sm:,} of an SM = 0 CTAs"
        )
    per_part = arch.registers_per_sm // parts
    fitting = per_part // per_warp
    return (
        f"{begin}{per_part:,} per partition / {per_warp:,} = {plural(fitting, 'warp')}; "
        f"{fitting} x {parts} partitions / {plural(warps, 'warp')} = {plural(ctas, 'CTA')}"
    )


def _smem(arch: GpuArch, smem_bytes: int, ctas: int) -> str:
    if smem_bytes > arch.smem_per_block_bytes:
        return f"{smem_bytes:,} B, more than the {arch.smem_per_block_bytes:,} B of a CTA = 0 CTAs"
    reserved = arch.smem_reserved_per_block_bytes
    taken = round_up(smem_bytes + reserved, arch.smem_allocation_unit_bytes)
    return (
        f"{smem_bytes:,} B + {reserved:,} B reserved, rounded to {taken:,} B; "
        f"{arch.smem_per_sm_bytes:,} B per SM / {taken:,} = {plural(ctas, 'CTA')}"
    )


def cycle_lines(
    workload: Workload, arch: GpuArch, tiling: Tiling, resources: Resources, found: Prediction
) -> dict[str, tuple[str, str]]:
    """The formula of one step's cycles and its numbers, by pipe.

    `arch` must have the tensor rates of the device.
    """
    block_m, block_n, warps = tiling.block_m, tiling.block_n, tiling.warps
    columns, columns_v = tiling.columns, tiling.columns_v
    size = DTYPES[workload.dtype]
    wgmma = "wgmma" in arch.features and warps >= 4 and block_m >= 64
    smem_clock = f"{arch.smem_bytes_per_clock_per_sm:,.0f}"
    spilled = resources.spill_bytes or 0
    known = {
        "tensor": (
            "2 M N (D + Dv) / FLOP per clock of an SM",
            f"2 x {block_m} x {block_n} x ({columns} + {columns_v}) / "
            f"{_rate(workload, arch, wgmma)}",
        ),
        "exp2": (
            "M N / exp2 per clock of an SM",
            f"{block_m} x {block_n} / {arch.exp2_per_clock_per_sm:,.0f}",
        ),
        "issue": _issue(tiling, size, found),
        "smem": _smem_cycles(tiling, size, wgmma, smem_clock),
        "spills": (
            f"{gpu_model.SPILL_TRIPS:.0f} x bytes spilled per thread x threads / bytes per clock",
            f"{gpu_model.SPILL_TRIPS} x {spilled:,} x {32 * warps} / {smem_clock}",
        ),
    }
    return {
        pipe: known.get(pipe, ("see tunefa/costmodel/gpu.py", f"{cycles:,.2f}"))
        for pipe, cycles in found.cycles_per_step.items()
    }


def _rate(workload: Workload, arch: GpuArch, wgmma: bool) -> str:
    """The FLOP per clock and SM of the instruction that the kernel uses, as an expression."""
    rates = arch.tensor_flops_per_clock_per_sm
    exact = workload.dtype == "fp32"  # three tf32 products
    rate = f"{rates['tf32']:,.0f} x 3" if exact else f"{rates[workload.dtype]:,.0f}"
    if "wgmma" in arch.features and not wgmma:  # mma.sync reaches a part of Hopper's rate
        rate += f" / {gpu_model.MMA_SYNC_RATE_ON_HOPPER}"
    return rate


def _issue(tiling: Tiling, size: int, found: Prediction) -> tuple[str, str]:
    block_m, block_n = tiling.block_m, tiling.block_n
    formula = f"({gpu_model.SLOTS_PER_SCORE} M N + M Dv"
    numbers = (
        f"({gpu_model.SLOTS_PER_SCORE} x {block_m} x {block_n} + {block_m} x {tiling.columns_v}"
    )
    slots = gpu_model.SLOTS_PER_SCORE * block_m * block_n + block_m * tiling.columns_v
    if tiling.copied_by_threads:
        copies = block_n * (tiling.columns + tiling.columns_v) * size // 16
        formula += f" + {gpu_model.SLOTS_PER_COPY:.0f} copies"
        numbers += f" + {gpu_model.SLOTS_PER_COPY:.0f} x {copies:,}"
        slots += gpu_model.SLOTS_PER_COPY * copies
    masks = found.cycles_per_step["issue"] * gpu_model.ISSUE_LANES - slots
    if masks >= 0.5:
        formula += " + masks"
        numbers += f" + {masks:,.0f}"
    lanes = f") / {gpu_model.ISSUE_LANES} lanes"
    return formula + lanes, numbers + f") / {gpu_model.ISSUE_LANES}"


def _smem_cycles(tiling: Tiling, size: int, wgmma: bool, per_clock: str) -> tuple[str, str]:
    block_m, kv_columns = tiling.block_m, tiling.columns + tiling.columns_v
    readers = ("warps", str(tiling.warps))
    if wgmma:
        readers = ("M / 64", f"{block_m} / 64")
    formula = f"(K, V bytes x (1 + {readers[0]})"
    numbers = f"({tiling.block_n * kv_columns * size:,} x (1 + {readers[1]})"
    if wgmma:
        formula += " + Q bytes"
        numbers += f" + {block_m * tiling.columns * size:,}"
    return f"{formula}) / bytes per clock", f"{numbers}) / {per_clock}"


def time_lines(
    found: Prediction, megahertz: float, through_l2: str
) -> dict[str, tuple[float, str]]:
    """The parts of the time in us, with their origins. The longest of the first three counts.

    `through_l2` says what the L2 cache delivers.
    """
    cycles = found.compute_us * megahertz / found.steps if found.steps else 0.0
    said = "the launches before and after it, or what its last CTA adds up"
    if found.beside_us < 0:
        said = "saved, as there is no launch before or after it"
    beside = {"beside": (found.beside_us, said)}
    return {
        "compute": (
            found.compute_us,
            f"{found.steps:,.1f} steps of one SM x {cycles:,.1f} cycles / "
            f"{megahertz:,.0f} MHz; the cycles are those of the pipes, overlapped, and of waiting",
        ),
        "L2": (found.l2_us, through_l2),
        "HBM": (found.hbm_us, "inputs and outputs once, and what the L2 cache cannot hold"),
        "launch": (gpu_model.LAUNCH_US, "added to the longest of these"),
        **(beside if found.beside_us else {}),
    }
