"""How many blocks of a kernel fit on one SM at a time, by the rules of the CUDA Toolkit.

Source: NVIDIA, cuda_occupancy.h of CUDA 13.0, cudaOccMaxActiveBlocksPerMultiprocessor, without
its limits on named barriers (a kernel that uses one barrier never meets it) and with the largest
carve-out of shared memory, which the driver picks by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunefa.spec.arch import GpuArch
from tunefa.spec.rounding import ceil_div, round_up


@dataclass(frozen=True)
class Occupancy:
    """Blocks of one kernel that one SM holds; 0 means that the kernel cannot be launched."""

    blocks_per_sm: int
    limits: Mapping[str, int] = field(hash=False)
    """Blocks that "threads", "registers", "smem" and "blocks" would each allow alone."""
    limiter: str
    """The lowest of `limits`, the first in that order if several are."""


def occupancy(arch: GpuArch, registers: int, smem_bytes: int, threads: int) -> Occupancy:
    """The occupancy of blocks of `threads` threads with `registers` registers each and
    `smem_bytes` bytes of shared memory (static and dynamic) per block.

    Raises ValueError for fewer than 1 register or thread, or less than 0 bytes.
    """
    if registers < 1 or threads < 1 or smem_bytes < 0:
        raise ValueError(f"no kernel has {registers=}, {threads=} and {smem_bytes=}")
    warps = ceil_div(threads, arch.warp_size)
    limits = {
        "threads": _by_threads(arch, threads, warps),
        "registers": _by_registers(arch, registers, warps),
        "smem": _by_smem(arch, smem_bytes),
        "blocks": arch.max_blocks_per_sm,
    }
    limiter = min(limits, key=lambda each: limits[each])
    return Occupancy(limits[limiter], limits, limiter)


def _by_threads(arch: GpuArch, threads: int, warps: int) -> int:
    return 0 if threads > arch.max_threads_per_block else arch.max_warps_per_sm // warps


def _by_registers(arch: GpuArch, registers: int, warps: int) -> int:
    per_warp = round_up(registers * arch.warp_size, arch.register_allocation_unit)
    parts = arch.register_partitions_per_sm
    if registers > arch.max_registers_per_thread:
        return 0
    # A warp cannot straddle partitions, so what is left over in each of them is lost. What the
    # launch check refuses, which rounds a block's warps up to all partitions, is 0 by this too.
    warps_per_part = arch.registers_per_sm // parts // per_warp
    return warps_per_part * parts // warps


def _by_smem(arch: GpuArch, smem_bytes: int) -> int:
    if smem_bytes > arch.smem_per_block_bytes:
        return 0
    taken = smem_bytes + arch.smem_reserved_per_block_bytes
    return arch.smem_per_sm_bytes // round_up(taken, arch.smem_allocation_unit_bytes)
