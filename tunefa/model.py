"""An analytic model of how long a tiled attention kernel takes, from its config and resources.

One program owns BLOCK_M query rows and takes steps of BLOCK_N keys. A step asks each pipe of its SM
for some cycles; how far the pipes overlap depends on how many independent instruction streams the
SM holds. Per step, with D the padded head dimension:

    tensor   2 BLOCK_M BLOCK_N (D + Dv) / tensor_flops_per_clock_per_sm / rate of the instruction
    exp2     BLOCK_M BLOCK_N / exp2_per_clock_per_sm
    issue    (8 BLOCK_M BLOCK_N + BLOCK_M Dv + loads) / 128 lanes: scale, maximum (half rate),
             sum, convert and, once a step, rescaling the accumulator; a mask adds 3 per score
    smem     bytes of K and V written once and read by every warp(group) / 128 bytes per clock
    spills   bytes that the compiler moved to local memory, which lives in the same L1

Streams: S = blocks per SM x warpgroups. One stream alone takes the longer of tensor and smem, then
the softmax, and a latency; S of them are held by the busiest pipe. Between the two stands the
balanced-job bound of queueing theory (Zahorjan et al., "Balanced Job Bound Analysis of Queueing
Networks", CACM 25(2), 1982):

    cycles per step of all streams = latency + alone + (S - 1) * busiest

The figures of the H200 behind the constants are in docs/model.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tunefa.arch import Arch, Device
from tunefa.expr import ceil_div, next_pow2
from tunefa.occupancy import Occupancy, occupancy
from tunefa.trial import Config, Resources
from tunefa.workload import DTYPES, Workload

# Constants with a source, or set once on 704 configs of five workloads timed on an H200 and then
# judged on others: docs/model.md.
MMA_SYNC_RATE_ON_HOPPER = 0.45
"""mma.sync against WGMMA. Alone it reaches 0.62 on an H100 (Luo et al., "Benchmarking and
Dissecting the Nvidia Hopper GPU Architecture", arXiv:2402.13499); with its operands' way through
ldmatrix and registers, attention kernels saw less."""
ISSUE_LANES = 128
"""Lanes that issue per clock and SM: four schedulers of 32 threads, every chip from sm80 on."""
SLOTS_PER_SCORE = 8.0
"""FFMA, FMNMX (half rate, so 2), FADD, MUFU, half an F2FP, and 2.5 for moves and waits between."""
MASK_SLOTS_PER_SCORE = 3.0
SLOTS_PER_COPY = 8.0
"""Issue slots of one 16-byte cp.async with its address; a TMA copy takes one thread."""
SPILL_TRIPS = 3.0
"""Times a spilled byte counts in a step: stored, loaded, and once for the wait between."""
STEP_LATENCY = 700.0
"""Cycles per step that no work of the same stream hides: barriers, first results, shuffles."""
LOAD_LATENCY = 900.0
"""Cycles from asking for a block of K or V to having it, out of L2 under load."""
STREAM_COUPLING = 0.2
"""Share of a stream that one more warpgroup of the same program is worth: they meet every step."""
LAUNCH_US = 3.0
SPARED_REGISTERS = 25
"""What ptxas saves by another order of instructions before it spills."""


@dataclass(frozen=True)
class Prediction:
    """A time and what it is made of."""

    time_us: float
    limiter: str
    """The pipe, or `latency`, `L2` or `HBM`, that binds."""
    occupancy: Occupancy
    cycles_per_step: Mapping[str, float] = field(hash=False)
    """Cycles one step of one program asks of each pipe."""
    steps: float
    """Steps of the SM with the most work."""
    compute_us: float
    l2_us: float
    hbm_us: float


@dataclass(frozen=True)
class _Tiling:
    """The workload cut into programs and steps."""

    programs: int
    steps_per_program: float
    masked_steps_per_program: float
    longest_program: float
    section_heads: int


def predict(
    workload: Workload, arch: Arch, device: Device, config: Config, resources: Resources
) -> Prediction:
    """The time of one launch, in us, on `device` at its boost clock.

    `resources` come from the compiler, or are a space's lower bounds. A config whose block does not
    fit an SM takes forever (`inf`, limiter `occupancy`).
    """
    # A device may be fused to other tensor rates than its arch: an H20 has 15 % of an H100's.
    arch = replace(arch, tensor_flops_per_clock_per_sm=device.tensor_flops_per_clock_per_sm)
    threads = 32 * int(config["num_warps"])
    fits = occupancy(
        arch, max(1, int(resources.registers or 0)), int(resources.smem_bytes or 0), threads
    )
    tiling = _tile(workload, config)
    pipes = _step_cycles(workload, arch, config, resources, tiling)
    if fits.blocks_per_sm == 0:
        infinite = float("inf")
        return Prediction(infinite, "occupancy", fits, pipes, 0.0, infinite, 0.0, 0.0)
    cycles, limiter = _sm_cycles(pipes, config, fits.blocks_per_sm)
    steps = _steps_of_busiest_sm(tiling, device, fits.blocks_per_sm)
    megahertz = device.boost_mhz
    compute_us = steps * cycles / megahertz
    l2_us, hbm_us = _memory_us(workload, device, config, tiling)
    parts = {limiter: compute_us, "L2": l2_us, "HBM": hbm_us}
    binding = max(parts, key=lambda part: parts[part])
    time_us = parts[binding] + LAUNCH_US
    return Prediction(time_us, binding, fits, pipes, steps, compute_us, l2_us, hbm_us)


def expected_resources(arch: Arch, config: Config, smem_bytes: int, accumulators: int) -> Resources:
    """What the compiler will probably report.

    From a space's lower bounds: shared memory, and registers per thread of scores and output.
    """
    threads = 32 * int(config["num_warps"])
    scores = int(config["BLOCK_M"]) * int(config["BLOCK_N"]) / threads
    output = max(0.0, accumulators - scores)
    if _uses_wgmma(arch, config):
        wanted = 15 + 1.5 * scores + 1.35 * output
    else:
        wanted = 65 + 2.0 * scores + output
    if config["LOADS"] == "pointer":
        wanted += 28
    # ptxas keeps to the registers that so many threads can have, whatever the user's cap is.
    cap = min(arch.max_registers_per_thread, arch.registers_per_sm // threads)
    cap = min(cap, int(config.get("maxnreg") or cap))
    spilled = max(0.0, wanted - SPARED_REGISTERS - cap)
    return Resources(smem_bytes, int(min(wanted, cap)), int(4 * spilled))


def _uses_wgmma(arch: Arch, config: Config) -> bool:
    return "wgmma" in arch.features and config["num_warps"] >= 4 and config["BLOCK_M"] >= 64


def _tile(workload: Workload, config: Config) -> _Tiling:
    packed = workload.group if config["PACK_GQA"] else 1
    block_m, block_n = int(config["BLOCK_M"]), int(config["BLOCK_N"])
    tiles = ceil_div(workload.seqlen_q * packed, block_m)
    heads = workload.batch * workload.heads // packed
    everything = ceil_div(workload.seqlen_k, block_n)
    if not workload.causal:
        masked = 1.0 if workload.seqlen_k % block_n else 0.0
        return _Tiling(tiles * heads, everything, masked, everything, int(config["SECTION_HEADS"]))
    rows = block_m / packed  # queries of one tile
    useful = workload.pairs / workload.seqlen_q / block_n  # steps if masks cost nothing
    masked = min(rows / block_n + 1.0, everything)
    steps = min(useful + masked / 2, everything)
    return _Tiling(tiles * heads, steps, masked, everything, int(config["SECTION_HEADS"]))


def _step_cycles(
    workload: Workload, arch: Arch, config: Config, resources: Resources, tiling: _Tiling
) -> dict[str, float]:
    block_m, block_n = int(config["BLOCK_M"]), int(config["BLOCK_N"])
    pad_d = max(16, next_pow2(workload.head_dim))
    pad_dv = max(16, next_pow2(workload.head_dim_v))
    scores = block_m * block_n
    size = DTYPES[workload.dtype]
    wgmma = _uses_wgmma(arch, config)
    rates = arch.tensor_flops_per_clock_per_sm
    rate = rates["tf32"] / 3 if workload.dtype == "fp32" else rates[workload.dtype]
    if "wgmma" in arch.features and not wgmma:
        rate *= MMA_SYNC_RATE_ON_HOPPER
    kv_bytes = block_n * (pad_d + pad_dv) * size
    masked_share = tiling.masked_steps_per_program / max(tiling.steps_per_program, 1e-9)
    slots = (SLOTS_PER_SCORE + MASK_SLOTS_PER_SCORE * masked_share) * scores + block_m * pad_dv
    if config["LOADS"] == "pointer":
        slots += SLOTS_PER_COPY * kv_bytes / 16
    # WGMMA reads K and V once per 64 query rows, mma.sync once per warp of 16; WGMMA also reads Q.
    readers = block_m / 64 if wgmma else config["num_warps"]
    smem = kv_bytes * (1 + readers) + (block_m * pad_d * size if wgmma else 0)
    spilled = SPILL_TRIPS * (resources.spill_bytes or 0) * 32 * config["num_warps"]
    return {
        "tensor": 2.0 * scores * (pad_d + pad_dv) / rate,
        "exp2": scores / arch.exp2_per_clock_per_sm,
        "issue": slots / ISSUE_LANES,
        "smem": smem / arch.smem_bytes_per_clock_per_sm,
        "spills": spilled / arch.smem_bytes_per_clock_per_sm,
    }


def _sm_cycles(pipes: Mapping[str, float], config: Config, blocks: int) -> tuple[float, str]:
    """(cycles per step of one program, what binds) with `blocks` programs resident on an SM."""
    warpgroups = max(1.0, config["num_warps"] / 4)
    streams = blocks * (1.0 + (warpgroups - 1.0) * STREAM_COUPLING)
    busiest = max(pipes, key=lambda pipe: pipes[pipe])
    # One stream: WGMMA reads its operands while it multiplies, and the softmax waits for it.
    serial = max(pipes["tensor"], pipes["smem"]) + pipes["exp2"] + pipes["issue"] + pipes["spills"]
    total = blocks * serial
    hidden = (config["num_stages"] - 1) * serial
    latency = STEP_LATENCY + max(0.0, LOAD_LATENCY - hidden)
    alone = total / streams + latency
    held = blocks * pipes[busiest] / streams
    cycles = (alone + (streams - 1.0) * held) / blocks
    return cycles, busiest if (streams - 1.0) * held > alone else "latency"


def _steps_of_busiest_sm(tiling: _Tiling, device: Device, blocks: int) -> float:
    """Steps of the SM that finishes last: whole programs, and a causal mask's tail."""
    programs = ceil_div(tiling.programs, device.sms)
    if programs <= blocks:  # all resident at once: the longest program of the one wave ends it
        return float(max(programs * tiling.steps_per_program, tiling.longest_program))
    even = tiling.programs / device.sms * tiling.steps_per_program
    if tiling.longest_program > tiling.steps_per_program:  # causal, heaviest first: short ones fill
        return max(even + 0.5 * tiling.steps_per_program, tiling.longest_program)
    return float(max(programs * tiling.steps_per_program, even))


def _memory_us(
    workload: Workload, device: Device, config: Config, tiling: _Tiling
) -> tuple[float, float]:
    """(us of L2 traffic, us of device memory traffic)."""
    size = DTYPES[workload.dtype]
    row = (workload.head_dim + workload.head_dim_v) * size
    streamed = tiling.programs * tiling.steps_per_program * int(config["BLOCK_N"]) * row
    # Heads that run at the same time share the L2; when theirs do not fit, K and V come again.
    resident = min(tiling.section_heads, workload.batch * workload.heads) * workload.seqlen_k * row
    misses = max(0.0, 1.0 - device.l2_bytes / (2.0 * resident)) if resident else 0.0
    device_bytes = workload.io_bytes + misses * streamed
    l2_bytes_per_us = device.l2_bytes_per_clock * device.boost_mhz
    return streamed / l2_bytes_per_us, device_bytes / device.hbm_bytes_per_s * 1e6
