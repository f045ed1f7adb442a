"""The cost model of attention over a cache on GPUs: the time of a config, from its tiling and
resources.

Every key is read once, so the memory is the limit if enough bytes are on their way. The parts:

    HBM      bytes of the cache, the queries and the output / (bandwidth x `HBM_SHARE`)
    flight   bytes of the SM with most splits / (bytes that its CTAs have on their way / latency):
             by Little's law, an SM that waits `LATENCY_US` for a copy moves no more than that
    steps    cycles that the warps of that SM compute: `CYCLES_PER_KEY` of a warp and 16 query rows,
             or with WGMMA the products at the peak rate, and `STEP_CYCLES` for each block

The longest of them, the launch, and the start and end of each split that a CTA computes, one after
the other, add up. A second launch reads what the splits have written, or the CTA that ends last
does, with few loads on their way. docs/model.md has the errors.
"""

from __future__ import annotations

from tunefa.costmodel.gpu import Prediction
from tunefa.costmodel.occupancy import Occupancy, occupancy
from tunefa.spec.arch import Device, GpuArch
from tunefa.spec.rounding import ceil_div
from tunefa.spec.tiling import DecodeTiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import Workload

VERSION = 3
"""The version of this model: see `tunefa.costmodel.version`."""
# The constants were set on 564 times of configs of attention_decode_cuda_sm90 for 38 workloads
# on an H200: docs/model.md.
HBM_SHARE = 0.91
"""The share of the bandwidth that reading reaches: 4.37 of 4.8 TB/s on an H200."""
LATENCY_US = 1.1
"""Time from the start of a copy to its end, where the memory is busy."""
CYCLES_PER_KEY = 70.0
"""Cycles of a warp for one key and 16 query rows, at head_dim 128; copies by threads take more."""
COPY_CYCLES_PER_KEY = 16.0
WGMMA_FLOPS_PER_CLOCK = 4096.0
"""Dense FLOPs of an SM's tensor cores in 16 bits (NVIDIA's H100 white paper: 989.4 TFLOP/s of 132
SMs at 1,830 MHz)."""
STEP_CYCLES = 600.0
"""Cycles of a step in which the warps of a CTA wait for one another."""
LAUNCH_US = 3.0
"""Time from the launch to the first byte, and from the last one to the end."""
SPLIT_US = 0.3
"""Time that a CTA takes at the start and the end of a split, where nothing overlaps it."""
COMBINE_US = 1.0
"""Time of the second launch, which starts while the first one runs."""
PLAIN_COMBINE_US = 3.5
"""The same where it does not."""
# These three were set on 10 pairs of times of attention_decode_cuda_sm90 on an H100, with and
# without LAST_CTA_COMBINES: docs/kernels.md. At two of them the model has the wrong sign: four
# splits at b4 h32/8 k32768 and b16 h64/8 k16384, where 1 is 0.3 and 0.7 % slower.
SECOND_LAUNCH_US = 0.5
"""The part of `LAUNCH_US` that a second launch takes, which has nothing to combine: 0.5 of 24.5 us
at b16 h32/8 k1024, 0.6 of 176 us at b128."""
ARRIVAL_US = 0.7
"""Time in which the last CTA finds out that it is the last."""
ROUND_TRIP_US = 0.75
"""Time in which a warp of that CTA reads `SPLITS_AT_ONCE` splits of a row and adds them up. Calls
were 0.1 us faster than with a second launch at one round trip of each warp of one sequence, 0.7 to
1.2 us slower at two, and 5.2 us slower at eight."""
SPLITS_AT_ONCE = 8
"""COMBINE_AT_ONCE in kernels/cuda/decode_combine.cuh."""


def predict(
    workload: Workload,
    arch: GpuArch,
    device: Device,
    tiling: DecodeTiling,
    resources: Resources,
) -> Prediction:
    """Returns the predicted time of one call, in us, on `device` at its boost clock.

    A config whose CTA does not fit on an SM gets an infinite time, with the limiter `occupancy`.
    Sequences of different lengths count as sequences of their mean length.
    """
    workload = workload.dense_equivalent
    registers, smem_bytes = max(1, int(resources.registers or 0)), int(resources.smem_bytes or 0)
    fits = occupancy(arch, registers, smem_bytes, tiling.threads)
    if fits.blocks_per_sm == 0:
        infinite = float("inf")
        return Prediction(infinite, "occupancy", fits, {}, 0.0, infinite, 0.0, 0.0)
    keys = workload.rows_and_keys[1] // workload.batch
    chip = arch, device
    made = (_of_splits(workload, chip, tiling, fits, cut) for cut in tiling.splits(keys))
    # A kernel whose last CTA combines chooses splits as if that took no time. Where several take
    # as long, the kernel takes the longest ones, and the model the shortest: that fits the times.
    left_out = float(tiling.last_cta_combines)
    return min(made, key=lambda each: each.time_us - left_out * each.beside_us)


def _of_splits(
    workload: Workload,
    chip: tuple[GpuArch, Device],
    tiling: DecodeTiling,
    fits: Occupancy,
    cut: tuple[int, int],
) -> Prediction:
    """The prediction for sequences that are cut into so many splits of so many keys."""
    (_, device), (splits, each) = chip, cut
    at_once = min(fits.blocks_per_sm, tiling.ctas_per_sm)
    row_tiles = ceil_div(workload.group * workload.seqlen_q, tiling.block_m)
    items = workload.batch * workload.heads_kv * row_tiles * splits
    rounds = ceil_div(items, device.sms * at_once)
    busy = min(at_once, ceil_div(items, device.sms))
    key_bytes = workload.kv_bytes * workload.kv_columns
    in_flight = busy * tiling.blocks_ahead * tiling.block_n * key_bytes
    flight_us = rounds * busy * each * key_bytes / max(in_flight, key_bytes) * LATENCY_US
    pipes = {"warps": cycles_of_block(workload, tiling)}
    crowded = busy if tiling.by_wgmma else max(1.0, busy * tiling.warps / 16)
    steps = rounds * ceil_div(each, tiling.block_n) * crowded
    compute_us = steps * pipes["warps"] / device.boost_mhz
    hbm_us = workload.io_bytes / (device.hbm_bytes_per_s * HBM_SHARE) * 1e6
    parts = {"warps": compute_us, "latency": flight_us, "HBM": hbm_us}
    binding = max(parts, key=lambda part: parts[part])
    beside_us = _combine_us(workload, chip, tiling, splits)
    time_us = parts[binding] + LAUNCH_US + rounds * SPLIT_US / busy + beside_us
    return Prediction(
        time_us, binding, fits, pipes, steps, compute_us, 0.0, hbm_us, beside_us=beside_us
    )


def expected_resources(tiling: DecodeTiling, smem_bytes: int, registers: int) -> Resources:
    """Returns what the compiler will probably report, from the lower bounds of a search space.

    The registers beside those of the tile are the average of 30 configs of each kernel.
    """
    wanted = registers + 100
    spilled = max(0, wanted - 10 - tiling.max_registers)
    return Resources(smem_bytes, min(wanted, tiling.max_registers), 4 * spilled)


def cycles_of_block(workload: Workload, tiling: DecodeTiling) -> float:
    """Cycles that the warps of a CTA take for a block of keys."""
    columns = tiling.columns + tiling.columns_v
    if tiling.by_wgmma:
        products = 2 * tiling.block_m * tiling.block_n * columns
        return products / WGMMA_FLOPS_PER_CLOCK + STEP_CYCLES
    size = columns / 256 * tiling.block_m / 16 * tiling.block_n
    copies = COPY_CYCLES_PER_KEY * 16 / tiling.block_m if tiling.copied_by_threads else 0.0
    return (CYCLES_PER_KEY + copies) * size / tiling.warps + STEP_CYCLES


def _combine_us(
    workload: Workload, chip: tuple[GpuArch, Device], tiling: DecodeTiling, splits: int
) -> float:
    """Time in which a second launch, or the last CTA, combines splits. That of a launch which has
    nothing to combine is part of `LAUNCH_US`; the last CTA saves it."""
    (arch, device), saved_us = chip, SECOND_LAUNCH_US * tiling.last_cta_combines
    if splits == 1:
        return 0.0 - saved_us  # not -0.0
    if tiling.last_cta_combines:
        rows_of_warp = ceil_div(workload.group * workload.seqlen_q, tiling.warps)
        trips = rows_of_warp * ceil_div(splits, SPLITS_AT_ONCE)
        return ARRIVAL_US + ROUND_TRIP_US * trips - saved_us
    rows = workload.batch * workload.heads * workload.seqlen_q
    moved = 4 * rows * splits * workload.head_dim_v
    starts = COMBINE_US if "tma" in arch.features else PLAIN_COMBINE_US
    return starts + moved / device.hbm_bytes_per_s * 1e6
