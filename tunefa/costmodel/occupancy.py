"""Occupancy: how many blocks of a kernel fit on one SM, by the rules of the CUDA Toolkit.

Source: NVIDIA, cuda_occupancy.h of CUDA 13.0, cudaOccMaxActiveBlocksPerMultiprocessor. Its limit
on named barriers is left out: a kernel with one barrier does not reach it. The shared memory
carve-out is the largest, which the driver chooses if a kernel needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunefa.spec.arch import GpuArch
from tunefa.spec.rounding import ceil_div, round_up


@dataclass(frozen=True)
class Occupancy:
    """The number of blocks of one kernel on one SM; 0 means that it cannot be launched."""

    blocks_per_sm: int
    limits: Mapping[str, int] = field(hash=False)
    """The number of blocks that each of "threads", "registers", "smem" and "blocks" allows."""
    limiter: str
    """The key of the lowest limit; of equal ones, the first."""


def occupancy(arch: GpuArch, registers: int, smem_bytes: int, threads: int) -> Occupancy:
    """Returns the occupancy of a kernel.

    `registers` is per thread, `smem_bytes` (static and dynamic) and `threads` are per block. Raises
    ValueError for less than 1 register, 1 thread or 0 bytes.
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
    # A warp cannot use two partitions, so the registers left over in each are lost. This also gives
    # 0 where the launch check refuses, which rounds a block's warps up to all partitions.
    warps_per_part = arch.registers_per_sm // parts // per_warp
    return warps_per_part * parts // warps


def _by_smem(arch: GpuArch, smem_bytes: int) -> int:
    if smem_bytes > arch.smem_per_block_bytes:
        return 0
    taken = smem_bytes + arch.smem_reserved_per_block_bytes
    return arch.smem_per_sm_bytes // round_up(taken, arch.smem_allocation_unit_bytes)
