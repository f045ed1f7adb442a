"""The cycles of one step of a kernel of attention's gradients, in each pipe of an SM.

A tile of keys holds K and V of N keys, and adds up their dK and dV; a step takes it past M query
rows. With D and Dv the padded head dimensions, a step has five products (FlashAttention-2,
arXiv:2307.08691, algorithm 2): S = Q K^T, dP = dO V^T, dV = P^T dO, dK = dS^T Q and dQ = dS K.
Scores are transposed, (keys, queries), so that P and dS are left operands from registers. Where dQ
has tiles of its own, of M2 query rows and N2 keys in a step, these multiply S and dP again: seven
products in all. The cycles of a step of a tile of keys:

    tensor   2 M N (3 D + 2 Dv) / tensor_flops_per_clock_per_sm / rate of the instruction
    exp2     M N / exp2_per_clock_per_sm, and as many for the tanh of a soft-cap
    issue    (7.5 M N + stores of dS and dQ + copies by threads) / 128 lanes: FFMA, FADD, FMUL, two
             halves of an F2FP, moves and waits; a mask adds 3 per score, a soft-cap 4
    smem     Q and dO, written once and read twice by every warp(group); K and V, read once unless
             they stay in registers; dS, written and read; K for dQ; dQ in fp32, staged, and read by
             TMA; all / bytes per clock
    spills   bytes that the compiler spilled to local memory, which is in the same L1 cache
"""

from __future__ import annotations

from dataclasses import dataclass

from tunefa.costmodel.gpu import (
    ISSUE_LANES,
    MASK_SLOTS_PER_SCORE,
    MMA_SYNC_RATE_ON_HOPPER,
    SLOTS_PER_COPY,
    SPILL_TRIPS,
    Cut,
)
from tunefa.spec.arch import GpuArch
from tunefa.spec.tiling import BackwardTiling
from tunefa.spec.workload import DTYPES, Workload

SLOTS_PER_SCORE = 7.5
"""FFMA and MUFU of the exponential, FADD and FMUL of dS, two halves of an F2FP, and 2.5 for moves
and waits, as in the model of the forward pass."""
SOFTCAP_SLOTS_PER_SCORE = 4.0
"""FMUL and MUFU of the tanh, FFMA and FMUL of its slope."""
FP32_BYTES = 4


def uses_wgmma(arch: GpuArch, tiling: BackwardTiling) -> bool:
    """Whether the compiler uses WGMMA in tiles of keys, which needs a warpgroup and 64 keys."""
    return _wgmma(arch, tiling, tiling.block_n)


def _wgmma(arch: GpuArch, tiling: BackwardTiling, rows: int) -> bool:
    return "wgmma" in arch.features and tiling.warps >= 4 and rows >= 64


def _rate(workload: Workload, arch: GpuArch, wgmma: bool) -> float:
    """FLOP per clock and SM of the instruction that multiplies."""
    rates = arch.tensor_flops_per_clock_per_sm
    rate = rates["tf32"] / 3 if workload.dtype == "fp32" else rates[workload.dtype]
    slower = "wgmma" in arch.features and not wgmma
    return rate * MMA_SYNC_RATE_ON_HOPPER if slower else rate


@dataclass(frozen=True)
class Work:
    """The work of one step of one CTA."""

    scores: int
    products: tuple[int, int]
    """The number of products over head_dim, and of those over head_dim_v."""
    tensor: float
    """Cycles of the products on the tensor cores."""
    loaded: int
    """Bytes of the blocks that are loaded."""
    smem: float
    """Bytes that are written to shared memory, and read from it."""
    stored: float
    """Pieces of 16 bytes of dS and dQ that threads write to shared memory."""


def of_keys(workload: Workload, arch: GpuArch, tiling: BackwardTiling) -> Work:
    """Returns the work in a step of a tile of keys (see the module's table)."""
    m, n, size = tiling.block_m, tiling.block_n, DTYPES[workload.dtype]
    both = tiling.columns + tiling.columns_v
    wgmma = uses_wgmma(arch, tiling)
    # WGMMA reads the right operand once per 64 rows of the left one, mma.sync once per warp.
    readers = n / 64 if wgmma else tiling.warps
    loaded = m * both * size
    smem = loaded * (1 + 2 * readers) + (0 if tiling.kv_in_registers else n * both * size)
    products, stored = (2, 2), 0.0
    if tiling.adds_dq:
        ds_bytes, dq_bytes = m * n * size, m * tiling.columns * FP32_BYTES
        readers_of_k = m / 64 if wgmma else tiling.warps
        smem += ds_bytes * (1 + tiling.dq_parts) + n * tiling.columns * size * readers_of_k
        smem += 2 * dq_bytes
        products, stored = (3, 2), (ds_bytes + dq_bytes) / 16
    tensor = _tensor(m * n, products, tiling, _rate(workload, arch, wgmma))
    return Work(m * n, products, tensor, loaded, smem, stored)


def of_queries(workload: Workload, arch: GpuArch, tiling: BackwardTiling) -> Work:
    """Returns the work in a step of a tile of queries: S, dP and dQ."""
    m, n, size = tiling.dq_block_m, tiling.dq_block_n, DTYPES[workload.dtype]
    both = tiling.columns + tiling.columns_v
    wgmma = _wgmma(arch, tiling, m)
    readers = m / 64 if wgmma else tiling.warps
    loaded = n * both * size
    smem = loaded * (1 + readers) + n * tiling.columns * size * readers + m * both * size
    tensor = _tensor(m * n, (2, 1), tiling, _rate(workload, arch, wgmma))
    return Work(m * n, (2, 1), tensor, loaded, smem, 0.0)


def _tensor(scores: int, products: tuple[int, int], tiling: BackwardTiling, rate: float) -> float:
    """Cycles of products over head_dim and over head_dim_v."""
    columns = products[0] * tiling.columns + products[1] * tiling.columns_v
    return 2.0 * scores * columns / rate


def slots_per_score(workload: Workload, cut: Cut) -> float:
    """Returns the issue slots of a score, averaged over steps with and without a mask."""
    masked = cut.masked_steps_per_tile / max(cut.steps_per_tile, 1e-9)
    softcap = SOFTCAP_SLOTS_PER_SCORE if workload.softcap else 0.0
    return SLOTS_PER_SCORE + MASK_SLOTS_PER_SCORE * masked + softcap


def cycles(
    work: Work, arch: GpuArch, tiling: BackwardTiling, spill_bytes: int, softmax: tuple[float, int]
) -> dict[str, float]:
    """Returns the cycles of a step in each pipe.

    `softmax` are the issue slots and the special functions (MUFU) of a score.
    """
    slots, special = softmax
    issued = slots * work.scores + work.stored
    if tiling.copied_by_threads:
        issued += SLOTS_PER_COPY * work.loaded / 16
    spilled = SPILL_TRIPS * spill_bytes * 32 * tiling.warps
    return {
        "tensor": work.tensor,
        "exp2": special * work.scores / arch.exp2_per_clock_per_sm,
        "issue": issued / ISSUE_LANES,
        "smem": work.smem / arch.smem_bytes_per_clock_per_sm,
        "spills": spilled / arch.smem_bytes_per_clock_per_sm,
    }
