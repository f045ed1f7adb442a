"""The cost model of attention's gradients on GPUs: the time of a config, from its tiling and
resources.

A tile of keys computes dK and dV, and adds to dQ in memory, unless dQ has tiles of queries of its
own. `tunefa.costmodel.backward_step` has the cycles of their steps in each pipe of an SM.

How the pipes of a step overlap is as in `tunefa.costmodel.gpu`, with the same constants. In a
warp-specialised kernel the exponentials of a step hide behind its product dP, and dS behind dV.

dQ that is added up in memory is read and written in fp32 in the L2 cache at each step. A launch
before the main one computes delta = rowsum(dO * O), and sets that dQ to zero; a launch after it
converts it. Both move their bytes at the bandwidth of the memory. Where tiles of queries are a
launch of their own, they compute delta; their time is part of the main launch's.

CTAs that share a tile of keys have a part of its query heads each. They write their dK and dV in
fp32, and the launch after the main one reads these and writes the sums.

docs/model.md compares it with measured times. None of its constants was fitted to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tunefa.costmodel import backward_step
from tunefa.costmodel.backward_step import FP32_BYTES, cycles, slots_per_score
from tunefa.costmodel.gpu import (
    LAUNCH_US,
    LOAD_LATENCY,
    SPARED_REGISTERS,
    Cut,
    Prediction,
    sm_cycles,
)
from tunefa.costmodel.occupancy import occupancy
from tunefa.spec.arch import Device, GpuArch
from tunefa.spec.rounding import ceil_div
from tunefa.spec.tiling import BackwardTiling
from tunefa.spec.trial import Resources
from tunefa.spec.workload import DTYPES, Workload


@dataclass(frozen=True)
class _Kind:
    """The tiles of one kind: of keys, or of queries."""

    cut: Cut
    pipes: Mapping[str, float]
    """Cycles of each pipe that one step of one CTA needs."""
    scores: int
    """The scores of a step."""


def predict(
    workload: Workload,
    arch: GpuArch,
    device: Device,
    tiling: BackwardTiling,
    resources: Resources,
) -> Prediction:
    """Returns the predicted time of one call, all of its launches, in us at the boost clock.

    `resources` are those of the main kernel. Its `cycles_per_step` are those of a tile of keys,
    with what tiles of queries need for as many scores. A config whose CTA does not fit on an SM
    gets an infinite time, with the limiter `occupancy`. For packed sequences the time is that of
    `Workload.dense_equivalent`.
    """
    workload = workload.dense_equivalent
    arch = replace(arch, tensor_flops_per_clock_per_sm=device.tensor_flops_per_clock_per_sm)
    registers, smem_bytes = max(1, int(resources.registers or 0)), int(resources.smem_bytes or 0)
    fits = occupancy(arch, registers, smem_bytes, tiling.threads)
    kinds = _kinds(workload, arch, tiling, resources)
    pipes = step_cycles(kinds)
    if fits.blocks_per_sm == 0:
        infinite = float("inf")
        return Prediction(infinite, "occupancy", fits, pipes, 0.0, infinite, 0.0, 0.0)
    busy, limiter = _busiest_sm(kinds, tiling, device, fits.blocks_per_sm)
    compute_us = busy / device.boost_mhz
    l2_us, hbm_us = _memory_us(workload, device, tiling, kinds)
    parts = {limiter: compute_us, "L2": l2_us, "HBM": hbm_us}
    binding = max(parts, key=lambda part: parts[part])
    beside_us = sum(beside(workload, device, tiling).values())
    time_us = parts[binding] + LAUNCH_US + beside_us
    steps = kinds[0].cut.tiles / device.sms * kinds[0].cut.steps_per_tile
    return Prediction(
        time_us, binding, fits, pipes, steps, compute_us, l2_us, hbm_us, beside_us=beside_us
    )


def expected_resources(
    arch: GpuArch, tiling: BackwardTiling, smem_bytes: int, registers: int
) -> Resources:
    """Returns what the compiler will probably report, from the lower bounds of a search space.

    `registers` is the number that a thread's scores and accumulators need; for a warp-specialised
    kernel, the number at launch, which the kernel sets itself. The others were fitted to what
    Triton 3.7 reported for 192 configs of its kernel on sm80, sm90 and sm120: half of the errors
    are below 32 registers, their standard deviation is 54.
    """
    if tiling.warp_specialised:
        return Resources(smem_bytes, registers, 0)
    wanted = 120 + registers + (45 if tiling.copied_by_threads else 0)
    spilled = max(0, wanted - SPARED_REGISTERS - tiling.max_registers)
    return Resources(smem_bytes, min(wanted, tiling.max_registers), 4 * spilled)


def step_cycles(kinds: list[_Kind]) -> dict[str, float]:
    """Returns the cycles of a step of a tile of keys, with those of as many scores of a tile of
    queries."""
    first = kinds[0]
    return {
        pipe: sum(kind.pipes[pipe] * first.scores / kind.scores for kind in kinds)
        for pipe in first.pipes
    }


def _kinds(
    workload: Workload, arch: GpuArch, tiling: BackwardTiling, resources: Resources
) -> list[_Kind]:
    """Returns the tiles of keys, and those of queries if there are any."""
    made = [(cut_of_keys(workload, tiling), backward_step.of_keys(workload, arch, tiling))]
    if not tiling.adds_dq:
        work = backward_step.of_queries(workload, arch, tiling)
        made.append((cut_of_queries(workload, tiling), work))
    found = []
    for cut, work in made:
        softmax = slots_per_score(workload, cut), 1 + workload.softcap
        pipes = cycles(work, arch, tiling, resources.spill_bytes or 0, softmax)
        found.append(_Kind(cut, pipes, work.scores))
    return found


def cut_of_keys(workload: Workload, tiling: BackwardTiling) -> Cut:
    """Returns the tiles of keys, each for as many CTAs as share it, and their steps through the
    query rows of their heads of a group.

    A masked block is half hidden on average, but computed as a whole.
    """
    splits = tiling.group_splits
    count = ceil_div(workload.seqlen_k, tiling.block_n) * workload.batch * workload.heads_kv
    heads = workload.group / splits
    found = _cut(workload, count * splits, (workload.seqlen_k, workload.seqlen_q),
                 (tiling.block_n, tiling.block_m))  # fmt: skip
    return replace(
        found,
        steps_per_tile=found.steps_per_tile * heads,
        masked_steps_per_tile=found.masked_steps_per_tile * heads,
        longest_tile=found.longest_tile * heads,
    )


def cut_of_queries(workload: Workload, tiling: BackwardTiling) -> Cut:
    """Returns the tiles of queries, and their steps through the keys."""
    count = ceil_div(workload.seqlen_q, tiling.dq_block_m) * workload.batch * workload.heads
    return _cut(workload, count, (workload.seqlen_q, workload.seqlen_k),
                (tiling.dq_block_m, tiling.dq_block_n))  # fmt: skip


def _cut(workload: Workload, count: int, lengths: tuple[int, int], blocks: tuple[int, int]) -> Cut:
    """Returns the steps of `count` tiles of `blocks[0]` rows of a sequence of `lengths[0]`, through
    another one of `lengths[1]` in blocks of `blocks[1]`."""
    everything = ceil_div(lengths[1], blocks[1])
    left, right = workload.band
    if left is None and right is None:
        return Cut(count, everything, 0.0, everything)
    edges, longest = (left is not None) + (right is not None), everything
    if left is not None and right is not None:
        longest = min(everything, ceil_div(left + 1 + right + blocks[0], blocks[1]) + 1)
    useful = workload.pairs / lengths[0] / blocks[1]  # steps, if masked blocks were free
    masked = min(edges * (blocks[0] / blocks[1] + 1.0), everything)
    return Cut(count, min(useful + masked / 2, everything), masked, longest)


def _busiest_sm(
    kinds: list[_Kind], tiling: BackwardTiling, device: Device, blocks: int
) -> tuple[float, str]:
    """Returns (cycles of the SM that finishes last, what limits them).

    An SM gets a tile when it has room for one, the longest first, so that short ones fill the gaps.
    Each tile waits for its first blocks, and writes its outputs; other CTAs compute meanwhile.
    """
    even, longest, tail, limiters = 0.0, 0.0, 0.0, dict[str, float]()
    for kind in kinds:
        of_step, limiter = sm_cycles(kind.pipes, tiling, blocks)
        fill = 2 * LOAD_LATENCY / of_step / blocks
        if tiling.warp_specialised:  # a pipeline of two stages: n steps take the time of n + 1
            fill += 1.0
        tile = (kind.cut.steps_per_tile + fill) * of_step
        of_kind = kind.cut.tiles / device.sms * tile
        even += of_kind
        limiters[limiter] = limiters.get(limiter, 0.0) + of_kind
        longest = max(longest, (kind.cut.longest_tile + fill) * of_step)
        tail = tile
    count = sum(kind.cut.tiles for kind in kinds)
    limiter = max(limiters, key=lambda name: limiters[name])
    if ceil_div(count, device.sms) <= blocks:  # one wave: the longest tile ends it
        return max(even, longest), limiter
    if len(kinds) == 1 and kinds[0].cut.longest_tile <= kinds[0].cut.steps_per_tile:
        return max(ceil_div(count, device.sms) * tail, even), limiter
    return max(even + 0.5 * tail, longest), limiter


def l2_misses(workload: Workload, device: Device, tiling: BackwardTiling) -> float:
    """Returns the share of the blocks' reads, beyond the first, that the L2 cache does not serve.

    The heads of an L2 section share the cache with their Q, dO and the dQ that is added up.
    """
    row = (workload.head_dim + workload.head_dim_v) * DTYPES[workload.dtype]
    row += FP32_BYTES * workload.head_dim if tiling.adds_dq else 0
    heads = min(tiling.l2_section_heads, workload.batch * workload.heads)
    resident = heads * workload.seqlen_q * row
    return max(0.0, 1.0 - device.l2_bytes / (2.0 * resident)) if resident else 0.0


def _memory_us(
    workload: Workload, device: Device, tiling: BackwardTiling, kinds: list[_Kind]
) -> tuple[float, float]:
    """Returns (us of L2 traffic, us of device memory traffic) of the main launch."""
    row = (workload.head_dim + workload.head_dim_v) * DTYPES[workload.dtype]
    rows = kinds[0].cut.tiles * kinds[0].cut.steps_per_tile * tiling.block_m
    added = 2.0 * FP32_BYTES * workload.head_dim if tiling.adds_dq else 0.0
    streamed = rows * (row + added)
    for kind in kinds[1:]:
        streamed += kind.cut.tiles * kind.cut.steps_per_tile * tiling.dq_block_n * row
    moved: float = workload.io_bytes
    if not tiling.in_two_passes:  # a launch before reads the output
        moved -= _output_bytes(workload)
    if tiling.adds_dq:
        moved += 2 * _fp32_dq_bytes(workload) - _dq_bytes(workload)
    if tiling.group_splits > 1:
        moved += _key_sum_bytes(workload, tiling) - _dkv_bytes(workload)
    moved += l2_misses(workload, device, tiling) * streamed
    l2_bytes_per_us = device.l2_bytes_per_clock * device.boost_mhz
    return streamed / l2_bytes_per_us, moved / device.hbm_bytes_per_s * 1e6


def beside(workload: Workload, device: Device, tiling: BackwardTiling) -> dict[str, float]:
    """Returns the us of the launches beside the main one, `before` and maybe `after` it: the bytes
    that they move, at the bandwidth of the memory, and LAUNCH_US each."""
    if tiling.in_two_passes:  # the first one's tiles are among those of the main launch
        return {"before": LAUNCH_US}
    rows = workload.batch * workload.heads * workload.seqlen_q
    moved: dict[str, float] = {"before": 2 * _output_bytes(workload) + 3 * FP32_BYTES * rows}
    if tiling.adds_dq:
        moved["before"] += _fp32_dq_bytes(workload)
        moved["after"] = _fp32_dq_bytes(workload) + _dq_bytes(workload)
    if tiling.group_splits > 1:
        moved["after"] = moved.get("after", 0.0) + _key_sum_bytes(workload, tiling)
        moved["after"] += _dkv_bytes(workload)
    per_us = device.hbm_bytes_per_s / 1e6
    return {name: LAUNCH_US + size / per_us for name, size in moved.items()}


def _output_bytes(workload: Workload) -> int:
    """Bytes of the forward pass's output; those of its gradient are as many."""
    rows = workload.batch * workload.heads * workload.seqlen_q
    return rows * workload.head_dim_v * DTYPES[workload.dtype]


def _dq_bytes(workload: Workload) -> int:
    """Bytes of dQ in the workload's dtype."""
    rows = workload.batch * workload.heads * workload.seqlen_q
    return rows * workload.head_dim * DTYPES[workload.dtype]


def _fp32_dq_bytes(workload: Workload) -> int:
    """Bytes of the dQ that is added up in memory."""
    return _dq_bytes(workload) // DTYPES[workload.dtype] * FP32_BYTES


def _dkv_bytes(workload: Workload) -> int:
    """Bytes of dK and dV in the workload's dtype."""
    rows = workload.batch * workload.heads_kv * workload.seqlen_k
    return rows * (workload.head_dim + workload.head_dim_v) * DTYPES[workload.dtype]


def _key_sum_bytes(workload: Workload, tiling: BackwardTiling) -> int:
    """Bytes of the dK and dV in fp32 of all CTAs that share tiles of keys."""
    per_number = FP32_BYTES // DTYPES[workload.dtype]
    return _dkv_bytes(workload) * per_number * tiling.group_splits
