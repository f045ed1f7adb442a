"""The cost model of GPUs: how long an attention kernel takes, from its tiling and resources.

A tile is M query rows that one CTA computes; a step takes the tile past N keys. Each step needs
some cycles of each pipe of its SM. How much the pipes overlap depends on the number of independent
instruction streams in the SM. The cycles of one step, with D and Dv the padded head dimensions:

    tensor   2 M N (D + Dv) / tensor_flops_per_clock_per_sm / rate of the instruction
    exp2     M N / exp2_per_clock_per_sm, and as many for the tanh of a soft-cap
    issue    (8 M N + M Dv + loads) / 128 lanes: scale, maximum (half rate), sum, conversion and,
             once a step, rescaling of the accumulator; a mask adds 3 per score, a soft-cap 2
    smem     bytes of K and V, written once and read by every warp(group), / 128 bytes per clock
    spills   bytes that the compiler spilled to local memory, which is in the same L1 cache

The number of streams is S = CTAs per SM x warpgroups. A single stream takes the longer of tensor
and smem, then the softmax, and a latency. S streams are limited by the busiest pipe. The
balanced-job bound of queueing theory lies between the two (Zahorjan et al., "Balanced Job Bound
Analysis of Queueing Networks", CACM 25(2), 1982):

    cycles per step of all streams = latency + alone + (S - 1) * busiest

A warp-specialised kernel differs in three ways. Its warpgroups do not wait for one another, so each
is a whole stream. A stream computes the softmax of one block while the tensor cores multiply
another, so a single stream takes the longer of the two, not their sum. This is a pipeline of two
stages: a tile of n blocks takes n + 1 steps, and its first queries and keys must arrive before.

docs/model.md has the errors on recorded landscapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tunefa.costmodel.occupancy import Occupancy, occupancy
from tunefa.spec.arch import Device, GpuArch
from tunefa.spec.rounding import ceil_div
from tunefa.spec.tiling import BackwardTiling, Tiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import DTYPES, Workload

VERSION = 2
"""The version of the model of GPUs, with what is learned: see `tunefa.costmodel.version`."""
# A constant without a source was set once on 704 configs of five workloads, timed on an H200, and
# then tested on other workloads: docs/model.md.
MMA_SYNC_RATE_ON_HOPPER = 0.45
"""The rate of mma.sync relative to WGMMA. A loop of mma.sync alone reaches 0.62 on an H100 (Luo et
al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv:2402.13499). Attention
kernels reach less, because they load its operands with ldmatrix."""
ISSUE_LANES = 128
"""Lanes that issue per clock and SM: four schedulers of 32 lanes, on all chips since sm80."""
SLOTS_PER_SCORE = 8.0
"""FFMA, FMNMX (2, for its half rate), FADD, MUFU, half an F2FP, and 2.5 for moves and waits."""
MASK_SLOTS_PER_SCORE = 3.0
SOFTCAP_SLOTS_PER_SCORE = 2.0
"""The kernel has an FMUL and a MUFU more per score."""
SLOTS_PER_COPY = 8.0
"""Issue slots of one 16-byte cp.async and its address. A TMA copy is issued by one thread."""
SPILL_TRIPS = 3.0
"""The number of times that a spilled byte counts in a step: store, load and the wait between."""
STEP_LATENCY = 700.0
"""Cycles per step that other work of the same stream cannot hide: barriers, shuffles and so on."""
LOAD_LATENCY = 900.0
"""Cycles that loading a block of K or V from a busy L2 takes."""
STREAM_COUPLING = 0.2
"""The number of streams that one more warpgroup of the same CTA adds: the warpgroups of a CTA wait
for one another in every step. In warp-specialised kernels it is 1."""
LAUNCH_US = 3.0
"""Time that a launch takes besides its work."""
SPARED_REGISTERS = 25
"""Registers per thread that ptxas saves by reordering instructions, before it spills."""


@dataclass(frozen=True)
class Prediction:
    """The predicted time of one launch, and its parts."""

    time_us: float
    limiter: str
    """The limiter of the time: a pipe, or `latency`, `L2`, `HBM` or `occupancy`."""
    occupancy: Occupancy
    cycles_per_step: Mapping[str, float] = field(hash=False)
    """Cycles of each pipe that one step of one CTA needs."""
    steps: float
    """Steps of the SM that has the most."""
    compute_us: float
    l2_us: float
    hbm_us: float
    beside_us: float = 0.0
    """Time of the launches of the call before and after the main one, theirs included; below 0
    where the model counts one with the main launch that is not there."""


@dataclass(frozen=True)
class Cut:
    """The numbers of tiles and steps of a workload; steps are an average over tiles."""

    tiles: int
    steps_per_tile: float
    masked_steps_per_tile: float
    longest_tile: float


def predict(
    workload: Workload, arch: GpuArch, device: Device, tiling: Tiling, resources: Resources
) -> Prediction:
    """Returns the predicted time of one launch, in us, on `device` at its boost clock.

    `resources` are the compiler's, or `expected_resources`. A config whose CTA does not fit on an
    SM gets an infinite time, with the limiter `occupancy`. For packed sequences the time is that of
    `Workload.dense_equivalent`.
    """
    workload = workload.dense_equivalent
    # A device may have other tensor rates than its arch: an H20 has 15 % of an H100's.
    if device.tensor_flops_per_clock_per_sm != arch.tensor_flops_per_clock_per_sm:
        arch = replace(arch, tensor_flops_per_clock_per_sm=device.tensor_flops_per_clock_per_sm)
    fits = _resident(arch, tiling, resources)
    cut = cut_of(workload, tiling)
    pipes = _step_cycles(workload, arch, tiling, resources, cut)
    if fits.blocks_per_sm == 0:
        infinite = float("inf")
        return Prediction(infinite, "occupancy", fits, pipes, 0.0, infinite, 0.0, 0.0)
    cycles, limiter = sm_cycles(pipes, tiling, fits.blocks_per_sm)
    steps = _steps_of_busiest_sm(_filled(cut, tiling, cycles), device, fits.blocks_per_sm)
    megahertz = device.boost_mhz
    compute_us = steps * cycles / megahertz
    l2_us, hbm_us = _memory_us(workload, device, tiling, cut)
    parts = {limiter: compute_us, "L2": l2_us, "HBM": hbm_us}
    binding = max(parts, key=lambda part: parts[part])
    time_us = parts[binding] + LAUNCH_US
    return Prediction(time_us, binding, fits, pipes, steps, compute_us, l2_us, hbm_us)


def expected_resources(arch: GpuArch, tiling: Tiling, smem_bytes: int, registers: int) -> Resources:
    """Returns what the compiler will probably report, from the lower bounds of a search space.

    `registers` is the number that a thread's scores and output need; for a warp-specialised kernel,
    the number at launch, which the kernel sets itself.
    """
    if tiling.warp_specialised:
        return Resources(smem_bytes, registers, 0)
    scores = tiling.block_m * tiling.block_n / tiling.threads
    output = max(0.0, registers - scores)
    if _uses_wgmma(arch, tiling):
        wanted = 15 + 1.5 * scores + 1.35 * output
    else:
        wanted = 65 + 2.0 * scores + output
    if tiling.copied_by_threads:
        wanted += 28
    # ptxas uses no more registers than so many threads can have, even if the user allows more.
    spilled = max(0.0, wanted - SPARED_REGISTERS - tiling.max_registers)
    return Resources(smem_bytes, int(min(wanted, tiling.max_registers)), int(4 * spilled))


def _uses_wgmma(arch: GpuArch, tiling: Tiling) -> bool:
    return "wgmma" in arch.features and tiling.warps >= 4 and tiling.block_m >= 64


def _resident(arch: GpuArch, tiling: Tiling, resources: Resources) -> Occupancy:
    """Returns the occupancy: at most one CTA per SM for a kernel that starts one on each SM."""
    registers, smem_bytes = max(1, int(resources.registers or 0)), int(resources.smem_bytes or 0)
    fits = occupancy(arch, registers, smem_bytes, tiling.threads)
    if tiling.warp_specialised and fits.blocks_per_sm > 1:
        return Occupancy(1, {**fits.limits, "grid": 1}, "grid")
    return fits


def tiles(workload: Workload, tiling: Tiling) -> int:
    """Returns the number of tiles of a dense workload; each is computed by one CTA."""
    of_head = ceil_div(workload.seqlen_q * tiling.packed_heads, tiling.block_m)
    return of_head * (workload.batch * workload.heads // tiling.packed_heads)


def cut_of(workload: Workload, tiling: Tiling) -> Cut:
    """Returns the tiles and steps of the workload.

    A masked block is half hidden on average, but computed as a whole.
    """
    rows, keys = tiling.block_m, tiling.block_n
    count = tiles(workload, tiling)
    everything = ceil_div(workload.seqlen_k, keys)
    left, right = workload.band
    if left is None and right is None:
        masked = 1.0 if workload.seqlen_k % keys else 0.0
        return Cut(count, everything, masked, everything)
    # A specialised warpgroup ends at its own diagonal, others end at the diagonal of the tile.
    queries = (64 if tiling.warp_specialised else rows) / tiling.packed_heads
    edges, longest = (left is not None) + (right is not None), everything
    if left is not None and right is not None:
        longest = min(everything, ceil_div(left + 1 + right + rows, keys) + 1)
    useful = workload.pairs / workload.seqlen_q / keys  # steps, if masked blocks were free
    masked = min(edges * (queries / tiling.diagonal_n + 1.0), everything)
    steps = min(useful + masked / 2 * (tiling.diagonal_n / keys), everything)
    return Cut(count, steps, masked, longest)


def _filled(cut: Cut, tiling: Tiling, cycles: float) -> Cut:
    """Returns `cut` with the steps that filling the pipeline takes at the start of each tile."""
    if not tiling.warp_specialised:
        return cut
    more = 1.0 + LOAD_LATENCY / cycles
    steps, longest = cut.steps_per_tile + more, cut.longest_tile + more
    return Cut(cut.tiles, steps, cut.masked_steps_per_tile, longest)


def _step_cycles(
    workload: Workload, arch: GpuArch, tiling: Tiling, resources: Resources, cut: Cut
) -> dict[str, float]:
    """Returns the cycles of each pipe that one step of one CTA needs (see the module's table)."""
    block_m, block_n = tiling.block_m, tiling.block_n
    columns = tiling.columns + tiling.columns_v
    scores = block_m * block_n
    size = DTYPES[workload.dtype]
    wgmma = _uses_wgmma(arch, tiling)
    rates = arch.tensor_flops_per_clock_per_sm
    rate = rates["tf32"] / 3 if workload.dtype == "fp32" else rates[workload.dtype]
    if "wgmma" in arch.features and not wgmma:
        rate *= MMA_SYNC_RATE_ON_HOPPER
    kv_bytes = block_n * columns * size
    masked_share = cut.masked_steps_per_tile / max(cut.steps_per_tile, 1e-9)
    slots = SLOTS_PER_SCORE + MASK_SLOTS_PER_SCORE * masked_share
    if workload.softcap:
        slots += SOFTCAP_SLOTS_PER_SCORE
    slots = slots * scores + block_m * tiling.columns_v
    if tiling.copied_by_threads:
        slots += SLOTS_PER_COPY * kv_bytes / 16
    # WGMMA reads K and V once per 64 query rows, mma.sync once per warp. WGMMA also reads Q.
    readers = block_m / 64 if wgmma else tiling.warps
    smem = kv_bytes * (1 + readers) + (block_m * tiling.columns * size if wgmma else 0)
    spilled = SPILL_TRIPS * (resources.spill_bytes or 0) * 32 * tiling.warps
    return {
        "tensor": 2.0 * scores * columns / rate,
        "exp2": (1 + workload.softcap) * scores / arch.exp2_per_clock_per_sm,
        "issue": slots / ISSUE_LANES,
        "smem": smem / arch.smem_bytes_per_clock_per_sm,
        "spills": spilled / arch.smem_bytes_per_clock_per_sm,
    }


def sm_cycles(
    pipes: Mapping[str, float], tiling: Tiling | BackwardTiling, blocks: int
) -> tuple[float, str]:
    """Returns (cycles per step of one CTA, what limits them), for `blocks` CTAs on an SM."""
    warpgroups = max(1.0, tiling.warps / 4)
    coupling = 1.0 if tiling.warp_specialised else STREAM_COUPLING
    streams = blocks * (1.0 + (warpgroups - 1.0) * coupling)
    busiest = max(pipes, key=lambda pipe: pipes[pipe])
    # WGMMA reads its operands while it multiplies.
    products = max(pipes["tensor"], pipes["smem"])
    serial = products + pipes["exp2"] + pipes["issue"] + pipes["spills"]
    if tiling.warp_specialised:
        serial = max(products, serial - products)
    total = blocks * serial
    hidden = (tiling.stages - 1) * serial
    latency = STEP_LATENCY + max(0.0, LOAD_LATENCY - hidden)
    alone = total / streams + latency
    held = blocks * pipes[busiest] / streams
    cycles = (alone + (streams - 1.0) * held) / blocks
    return cycles, busiest if (streams - 1.0) * held > alone else "latency"


def _steps_of_busiest_sm(cut: Cut, device: Device, blocks: int) -> float:
    """Returns the steps of the SM that finishes last."""
    tiles = ceil_div(cut.tiles, device.sms)
    if tiles <= blocks:  # one wave: the longest tile ends it
        return float(max(tiles * cut.steps_per_tile, cut.longest_tile))
    even = cut.tiles / device.sms * cut.steps_per_tile
    if cut.longest_tile > cut.steps_per_tile:  # causal, longest first: short tiles fill the gaps
        return max(even + 0.5 * cut.steps_per_tile, cut.longest_tile)
    return float(max(tiles * cut.steps_per_tile, even))


def l2_misses(workload: Workload, device: Device, tiling: Tiling) -> float:
    """Returns the share of the reads of K and V, beyond the first, that the L2 does not serve.

    The heads of an L2 section share the cache. If their K and V do not fit, they are read again.
    """
    row = (workload.head_dim + workload.head_dim_v) * workload.kv_bytes
    heads = min(tiling.l2_section_heads, workload.batch * workload.heads)
    resident = heads * workload.seqlen_k * row
    return max(0.0, 1.0 - device.l2_bytes / (2.0 * resident)) if resident else 0.0


def _memory_us(workload: Workload, device: Device, tiling: Tiling, cut: Cut) -> tuple[float, float]:
    """Returns (us of L2 traffic, us of device memory traffic)."""
    row = (workload.head_dim + workload.head_dim_v) * workload.kv_bytes
    streamed = cut.tiles * cut.steps_per_tile * tiling.block_n * row
    device_bytes = workload.io_bytes + l2_misses(workload, device, tiling) * streamed
    l2_bytes_per_us = device.l2_bytes_per_clock * device.boost_mhz
    return streamed / l2_bytes_per_us, device_bytes / device.hbm_bytes_per_s * 1e6
