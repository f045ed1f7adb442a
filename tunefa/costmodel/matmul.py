"""The cost model of matrix products on GPUs: the time of a config, from its tiling and resources.

A tile is M rows and N columns of C that one CTA computes; a step takes the tile past K columns of A
and rows of B. The cycles of one step in each pipe of an SM:

    tensor   2 M N K / tensor_flops_per_clock_per_sm / rate of the instruction
    issue    8 slots for each 16 bytes that threads copy / 128 lanes; TMA copies take none
    smem     A and B, written once and read by warps, / bytes per clock: WGMMA reads A once and B
             for each 64 rows; mma.sync reads A for each column of warps, B for each row of warps
    spills   bytes that the compiler spilled to local memory, which is in the same L1 cache

Copies and products of one CTA overlap, so that a stream takes the longer of tensor and smem, then
the issue slots, and the latency of a step. A warp uses the tensor cores of its own part of the SM,
of which there are four. CTAs and warpgroups are streams of their own, and they overlap as in
`tunefa.costmodel.gpu`, by the balanced-job bound. A tile also waits for its first block and writes
C. The L2 cache delivers each block of A and B to each tile; the HBM delivers what
the tiles that run at the same time read, if A and B are too large for the cache.

No device has been compared with it yet. Its constants are those of the model of attention, where
they mean the same, and published figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tunefa.costmodel.gpu import (
    ISSUE_LANES,
    LAUNCH_US,
    LOAD_LATENCY,
    SLOTS_PER_COPY,
    SPARED_REGISTERS,
    SPILL_TRIPS,
    STREAM_COUPLING,
    Prediction,
)
from tunefa.costmodel.occupancy import occupancy
from tunefa.spec.arch import Device, GpuArch
from tunefa.spec.matmul import DTYPES, Matmul
from tunefa.spec.rounding import ceil_div
from tunefa.spec.tiling import MatmulTiling
from tunefa.spec.trial import Resources

MMA_SYNC_RATE_ON_HOPPER = 0.62
"""The rate of mma.sync relative to WGMMA on an H100 (Luo et al., "Benchmarking and Dissecting the
Nvidia Hopper GPU Architecture", arXiv:2402.13499)."""
STEP_LATENCY = 150.0
"""Cycles of a step that other work of its CTA cannot hide: a barrier and the end of the products.
It was never measured."""
STORE_BYTES_PER_CLOCK = 64.0
"""Bytes of C that an SM writes to the L2 cache per clock: half of what its L1 cache delivers."""
LOADED_L2_SHARE = 0.5
"""The share of the L2 cache that A and B may take and still be found there again, as in the model
of attention."""


def predict(
    workload: Matmul,
    arch: GpuArch,
    device: Device,
    tiling: MatmulTiling,
    resources: Resources,
) -> Prediction:
    """Returns the predicted time of one launch, in us, on `device` at its boost clock.

    A config whose CTA does not fit on an SM gets an infinite time, with the limiter `occupancy`.
    """
    arch = replace(arch, tensor_flops_per_clock_per_sm=device.tensor_flops_per_clock_per_sm)
    registers, smem_bytes = max(1, int(resources.registers or 0)), int(resources.smem_bytes or 0)
    fits = occupancy(arch, registers, smem_bytes, tiling.threads)
    pipes = step_cycles(workload, arch, tiling, resources)
    if fits.blocks_per_sm == 0:
        infinite = float("inf")
        return Prediction(infinite, "occupancy", fits, pipes, 0.0, infinite, 0.0, 0.0)
    count = tiles(workload, tiling)
    of_sm = ceil_div(count, device.sms)
    at_once = min(fits.blocks_per_sm, of_sm)
    parts = arch.register_partitions_per_sm
    alone = pipes["tensor"] * parts / min(parts, tiling.warps)
    cycles, limiter = _sm_cycles(pipes, alone, tiling, at_once)
    stored = tiling.block_m * tiling.block_n * DTYPES[workload.dtype] / STORE_BYTES_PER_CLOCK
    # Other CTAs of the SM compute while one begins or ends.
    fill = (LOAD_LATENCY + stored) / cycles / at_once
    steps = of_sm * (ceil_div(workload.k, tiling.block_k) + fill)
    compute_us = steps * cycles / device.boost_mhz
    l2_us, hbm_us = _memory_us(workload, device, tiling, fits.blocks_per_sm)
    times = {limiter: compute_us, "L2": l2_us, "HBM": hbm_us}
    binding = max(times, key=lambda part: times[part])
    time_us = times[binding] + LAUNCH_US
    return Prediction(time_us, binding, fits, pipes, steps, compute_us, l2_us, hbm_us)


def expected_resources(
    workload: Matmul, arch: GpuArch, tiling: MatmulTiling, smem_bytes: int, registers: int
) -> Resources:
    """Returns what the compiler will probably report, from the lower bounds of a search space.

    `registers` is the number that a thread's part of the tile needs. The others were fitted to what
    Triton 3.7 reported for 544 configs on sm80 to sm120: the standard deviation of the error is 13
    registers with WGMMA, 22 with mma.sync and 35 where sizes are not aligned.
    """
    block_bytes = (tiling.block_m + tiling.block_n) * tiling.block_k * DTYPES[workload.dtype]
    copies = block_bytes / 16 / tiling.threads if tiling.copied_by_threads else 0.0
    if not workload.is_aligned:
        wanted = 72 + 0.74 * registers + 8.4 * copies
    elif uses_wgmma(arch, tiling):
        wanted = 25 + 1.1 * registers + 2.3 * copies
    else:
        wanted = 40 + 1.3 * registers + 0.7 * copies
    spilled = max(0.0, wanted - SPARED_REGISTERS - tiling.max_registers)
    return Resources(smem_bytes, int(min(wanted, tiling.max_registers)), int(4 * spilled))


def uses_wgmma(arch: GpuArch, tiling: MatmulTiling) -> bool:
    """Whether the compiler uses WGMMA, which needs a warpgroup and 64 rows."""
    return "wgmma" in arch.features and tiling.warps >= 4 and tiling.block_m >= 64


def tiles(workload: Matmul, tiling: MatmulTiling) -> int:
    """Returns the number of tiles; each is computed by one CTA."""
    return ceil_div(workload.m, tiling.block_m) * ceil_div(workload.n, tiling.block_n)


def warp_grid(tiling: MatmulTiling) -> tuple[int, int]:
    """Returns the rows and columns of warps with which mma.sync reads the fewest bytes."""
    splits = [(2**i, tiling.warps // 2**i) for i in range(tiling.warps.bit_length())]
    return min(splits, key=lambda grid: tiling.block_m * grid[1] + tiling.block_n * grid[0])


def step_cycles(
    workload: Matmul, arch: GpuArch, tiling: MatmulTiling, resources: Resources
) -> dict[str, float]:
    """Returns the cycles of each pipe that one step of one CTA needs (see the module's table)."""
    size, wgmma = DTYPES[workload.dtype], uses_wgmma(arch, tiling)
    a_bytes, b_bytes = (block * tiling.block_k * size for block in (tiling.block_m, tiling.block_n))
    rate = arch.tensor_flops_per_clock_per_sm[
        "tf32" if workload.dtype == "fp32" else workload.dtype
    ]
    if "wgmma" in arch.features and not wgmma:
        rate *= MMA_SYNC_RATE_ON_HOPPER
    rows, columns = (tiling.block_m / 64, 1) if wgmma else warp_grid(tiling)
    smem = a_bytes * (1 + columns) + b_bytes * (1 + rows)
    copies = (a_bytes + b_bytes) / 16 if tiling.copied_by_threads else 0.0
    spilled = SPILL_TRIPS * (resources.spill_bytes or 0) * tiling.threads
    return {
        "tensor": 2.0 * tiling.block_m * tiling.block_n * tiling.block_k / rate,
        "issue": SLOTS_PER_COPY * copies / ISSUE_LANES,
        "smem": smem / arch.smem_bytes_per_clock_per_sm,
        "spills": spilled / arch.smem_bytes_per_clock_per_sm,
    }


def _sm_cycles(
    pipes: Mapping[str, float], products: float, tiling: MatmulTiling, blocks: int
) -> tuple[float, str]:
    """Returns (cycles per step of one CTA, what limits them), for `blocks` CTAs on an SM.

    `products` are the cycles of the products in a CTA that is alone, whose warps may be too few to
    use all tensor cores.
    """
    streams = blocks * (1.0 + (max(1.0, tiling.warps / 4) - 1.0) * STREAM_COUPLING)
    busiest = max(pipes, key=lambda pipe: pipes[pipe])
    serial = max(products, pipes["smem"]) + pipes["issue"] + pipes["spills"]
    latency = STEP_LATENCY + max(0.0, LOAD_LATENCY - (tiling.stages - 1) * serial)
    alone = blocks * serial / streams + latency
    others = (streams - 1.0) * blocks * pipes[busiest] / streams
    busy = blocks * pipes[busiest] / streams
    waits = latency + max(0.0, products - pipes["tensor"])
    limiter = busiest if max(others, busy) > waits else "latency"
    return (alone + others) / blocks, limiter


def _memory_us(
    workload: Matmul, device: Device, tiling: MatmulTiling, blocks: int
) -> tuple[float, float]:
    """Returns (us of L2 traffic, us of device memory traffic)."""
    size, count = DTYPES[workload.dtype], tiles(workload, tiling)
    row, column = tiling.block_m * workload.k * size, tiling.block_n * workload.k * size
    streamed = count * (row + column)
    # The tiles of a wave are `rows` rows of tiles and as many columns as it has room for.
    wave = min(count, device.sms * blocks)
    rows = min(tiling.group_m, wave, ceil_div(workload.m, tiling.block_m))
    of_wave = rows * row + math.ceil(wave / rows) * column
    inputs = (workload.m + workload.n) * workload.k * size
    missed = max(0.0, 1.0 - device.l2_bytes * LOADED_L2_SHARE / inputs)
    again = missed * max(0.0, count / wave * of_wave - inputs)
    l2_bytes_per_us = device.l2_bytes_per_clock * device.boost_mhz
    return streamed / l2_bytes_per_us, (workload.io_bytes + again) / device.hbm_bytes_per_s * 1e6
