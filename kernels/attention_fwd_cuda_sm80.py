"""FlashAttention-2 forward in CUDA C++, for every NVIDIA chip from sm80 on.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

Algorithm: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
arXiv:2307.08691, algorithm 1: one CTA owns BLOCK_M query rows of one head, each of its warps 16
or 32 of them, and K and V pass by in blocks of BLOCK_N keys, from the last one that a row sees.
Scores, row maximum, row sum and output stay in the registers of the warp that owns the row. The
products are mma.sync m16n8k16 with fp32 sums, whose result lies in registers as the next one's
factor does; tiles come by cp.async and leave shared memory by ldmatrix, through an XOR swizzle
without bank conflicts.

Choices beyond the paper:
* exponentials are base 2 and `scale * log2(e)` enters as `exp2(s * scale - max)`, one fused
  multiply-add and one special-function operation per score;
* only blocks that a mask touches compare, and only the last one may have a tail of keys;
* head dimensions are multiples of 8, padded to 16 for q k^T and not at all for V;
* causal tiles are handed out heaviest first, within as many heads as the L2 cache holds.

Causal means bottom-right aligned (FlashAttention >= 2.1): query i sees keys j <= i + seqlen_k -
seqlen_q. A row that sees no key gives out = 0 and lse = -inf.

What each parameter trades:
    num_warps          warps of a CTA: all of them read each block of K and V
    BLOCK_M            16 or 32 rows a warp: reuse of K and V out of shared memory against registers
    BLOCK_N            keys a step: fewer barriers and rescalings against registers and shared
                       memory
    num_stages         blocks of K, and of V, in shared memory. 1: K of the next block arrives
                       during softmax and the second product, V during the first, with two barriers
                       a step; more: whole blocks ahead, with one
    Q_IN_REGS          1: queries stay in registers instead of being read again for each block
    SHARE_QK_SMEM      1: K overwrites the queries in shared memory once they are in registers
    RESCALE_THRESHOLD  powers of two by which scores may exceed their row's maximum before it
                       follows them; a warp whose maxima all stay need not rescale its output
    MIN_BLOCKS_PER_SM  CTAs of an SM that the compiler leaves registers for: occupancy against
                       spills
"""

import ctypes
import math

from tunefa.spec.rounding import ceil_div

LOG2_E = math.log2(math.e)
SECTION_BYTES = 8 * 2**20
"""K and V of the heads whose causal tiles are interleaved."""


class Strides(ctypes.Structure):
    """The structure of the same name in cuda/attention_problem.cuh."""

    _fields_ = (("batch", ctypes.c_longlong), ("head", ctypes.c_longlong), ("row", ctypes.c_int))


class Sizes(ctypes.Structure):
    """The structure of the same name in cuda/attention_problem.cuh."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("heads", "group", "seqlen_q", "seqlen_k", "tiles")),
        *((name, ctypes.c_int) for name in ("all_heads", "section_heads")),
        ("scale_log2", ctypes.c_float),
    )


def variant(workload, config, aligned=True):
    """What NVRTC needs for one config, with no device present: a plain dict.

    The compiled kernel depends on no batch, head count or length. It reads `aligned` tensors only.
    """
    return {
        "function": "attention_fwd",
        "defines": {
            "HEAD_DIM": workload.head_dim,
            "HEAD_DIM_V": workload.head_dim_v,
            "BF16": int(workload.dtype == "bf16"),
            "CAUSAL": int(workload.causal),
            **config,
        },
        "threads": 32 * config["num_warps"],
    }


def is_aligned(tensors):
    """Whether rows of these tensors begin at multiples of 16 bytes, which cp.async copies."""
    return all(
        tensor.data_ptr() % 16 == 0 and all(step % 8 == 0 for step in tensor.stride()[:3])
        for tensor in tensors[:4]
    )


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its parameters.

    `tensors` = (q, k, v, out, lse): q, out (batch, heads, seqlen_q, head_dim | head_dim_v); k, v
    (batch, heads_kv, seqlen_k, head_dim | head_dim_v), aligned, rows contiguous; lse (batch, heads,
    seqlen_q), fp32, contiguous. `scale` multiplies q @ k^T and is positive.
    """
    w = spec.workload
    tiles, all_heads = ceil_div(w.seqlen_q, spec.config["BLOCK_M"]), w.batch * w.heads
    section = 1
    if w.causal:
        head_bytes = 2 * w.seqlen_k * (w.head_dim + w.head_dim_v)
        section = min(all_heads, w.group * max(1, SECTION_BYTES // head_bytes))
    sizes = (w.heads, w.group, w.seqlen_q, w.seqlen_k, tiles, all_heads, section)
    strides = [Strides(*tensor.stride()[:3]) for tensor in tensors[:4]]
    return (tiles * all_heads, 1, 1), [*tensors, *strides, Sizes(*sizes, spec.scale * LOG2_E)]
