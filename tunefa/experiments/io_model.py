"""The bytes that attention moves between a GPU and its memory, by count and by theory.

Standard attention writes the matrix of scores and reads it again for each operator. A fused kernel
keeps the scores in registers: it reads Q once, and K and V once for each tile of queries. The L2
serves these repeated reads as far as it holds K and V.

Theorem 2 of Dao et al., "FlashAttention" (arXiv:2205.14135): for N queries and keys of head
dimension d and a fast memory of M elements, standard attention accesses Theta(N d + N^2) elements
of the HBM, and FlashAttention Theta(N^2 d^2 / M). The theta hides constant factors.
"""

from __future__ import annotations

from dataclasses import dataclass

from tunefa.costmodel import gpu as gpu_model
from tunefa.experiments import modelled
from tunefa.spec.arch import Device, GpuArch
from tunefa.spec.rounding import ceil_div
from tunefa.spec.tiling import Tiling
from tunefa.spec.workload import DTYPES, Workload


@dataclass(frozen=True)
class Traffic:
    """Bytes that one computation moves."""

    read_bytes: float
    """Bytes read from HBM."""
    written_bytes: float
    """Bytes written to HBM."""
    l2_bytes: float
    """Bytes that the SMs read from and write to the L2, whether it holds them or not."""

    @property
    def hbm_bytes(self) -> float:
        """Bytes read from and written to HBM."""
        return self.read_bytes + self.written_bytes


def standard(workload: Workload, device: Device) -> Traffic:
    """Returns the bytes of attention in PyTorch's operators.

    A result that another operator has just written is read from the L2 if it takes no more than
    `modelled.L2_SHARE` of it. Raises TunefaError for packed sequences.
    """
    read = written = 0.0
    scores, out = _scores_bytes(workload), _out_bytes(workload)
    operators = modelled.operators(workload)
    for each in operators:
        result = out if each is operators[-1] else scores
        kept = each.through_l2 if each.through_l2 <= modelled.L2_SHARE * device.l2_bytes else 0
        read += each.bytes - result - kept
        written += result
    return Traffic(read, written, sum(each.bytes for each in operators))


def fused(workload: Workload, device: Device, tiling: Tiling) -> Traffic:
    """Returns the bytes of a fused kernel with these tiles.

    All inputs are read once. Of the further reads of K and V, one for each tile, the L2 serves
    what `gpu_model.l2_misses` leaves.
    """
    workload = workload.dense_equivalent
    written = _out_bytes(workload) + 4 * workload.batch * workload.heads * workload.seqlen_q
    inputs = workload.io_bytes - written
    once = _kv_bytes(workload)
    streamed = keys_read(workload, tiling) * _row_bytes(workload)
    again = max(0, streamed - once)
    misses = gpu_model.l2_misses(workload, device, tiling)
    return Traffic(inputs + misses * again, written, inputs - once + streamed + written)


def keys_read(workload: Workload, tiling: Tiling) -> int:
    """Returns how many keys all tiles of a dense workload read, in sum: each reads whole blocks of
    keys, from the first to the last one that a query of the tile sees."""
    packed = tiling.packed_heads
    left, right = workload.band
    diagonal = workload.seqlen_k - workload.seqlen_q
    total = 0
    for first in range(0, workload.seqlen_q * packed, tiling.block_m):
        end = min(first + tiling.block_m, workload.seqlen_q * packed)
        oldest, newest = first // packed, (end - 1) // packed
        stop = workload.seqlen_k
        if right is not None:
            stop = min(stop, max(0, newest + diagonal + right + 1))
        start = 0
        if left is not None:
            start = max(0, oldest + diagonal - left) // tiling.block_n * tiling.block_n
        blocks = ceil_div(max(0, stop - start), tiling.block_n)
        total += max(0, min(blocks * tiling.block_n, workload.seqlen_k - start))
    return total * workload.batch * (workload.heads // packed)


@dataclass(frozen=True)
class Theory:
    """The terms of Theorem 2 in bytes, over all heads; only their growth has a meaning."""

    standard_bytes: float
    """N d + N^2 elements."""
    fused_bytes: float
    """N^2 d^2 / M elements."""
    fast_elements: int
    """M: the elements that the shared memory of one SM holds."""


def theory(workload: Workload, arch: GpuArch) -> Theory:
    """Returns the terms of Theorem 2, with queries times keys for N^2 where they differ."""
    workload = workload.dense_equivalent
    size = DTYPES[workload.dtype]
    fast = arch.smem_per_sm_bytes // size
    pairs = workload.seqlen_q * workload.seqlen_k
    inputs = max(workload.seqlen_q, workload.seqlen_k) * workload.head_dim
    heads = workload.batch * workload.heads * size
    return Theory(heads * (inputs + pairs), heads * pairs * workload.head_dim**2 / fast, fast)


def _row_bytes(workload: Workload) -> int:
    """The bytes of K and V of one key."""
    return (workload.head_dim + workload.head_dim_v) * DTYPES[workload.dtype]


def _kv_bytes(workload: Workload) -> int:
    return workload.batch * workload.heads_kv * workload.seqlen_k * _row_bytes(workload)


def _scores_bytes(workload: Workload) -> int:
    pairs = workload.seqlen_q * workload.seqlen_k
    return workload.batch * workload.heads * pairs * DTYPES[workload.dtype]


def _out_bytes(workload: Workload) -> int:
    rows = workload.batch * workload.heads * workload.seqlen_q
    return rows * workload.head_dim_v * max(2, DTYPES[workload.dtype])
