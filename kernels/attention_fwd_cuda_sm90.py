"""Host side of attention_fwd_cuda_sm90.cu: what is compiled for a workload, and how it is launched.

The algorithm stands in the .cu. What each parameter trades:
    WARPGROUPS   rows per tile against registers per thread
    BLOCK_N      fewer, longer steps, and queries read less often, against registers and shared
                 memory; any multiple of 16
    STAGES       blocks of K and of V in flight against shared memory
    Q_STAGES     2: the next tile's queries arrive early, for shared memory
    O_PARTS      0: the output leaves through the queries' buffer; 1, 2: through one of its own, in
                 as many trips, and the next queries arrive meanwhile
    OVERLAP      1: a block's softmax runs while the output of the block before is multiplied; 0:
                 fewer registers, and other warpgroups fill the gaps
    PING_PONG    1: warpgroups take turns at the tensor cores
    SLACK        powers of two by which scores may exceed their row's maximum before it follows
                 them; a warp whose maxima all stay need not rescale its output
    HALF_DIAGONAL  1: of a causal tile's first block, only the half that can be seen is multiplied
    SWIZZLE      bytes of a row that lie together in shared memory: narrower, for head dimensions
                 that would leave the last 128 bytes half empty
    P_SHARED     1: probabilities go to the second product through shared memory, of which they
                 take room for BLOCK_N / 4 registers per thread
    CLUSTER      2: two programs share K and V, of which each reads one half: half the traffic from
                 L2, and each waits for the slower
    SECTION_MB   causal: heads whose K and V fill so much of the L2 are worked on together
"""

import ctypes
import math

from tunefa.kernels.hopper import tile_table
from tunefa.kernels.hopper.tma import is_aligned  # noqa: F401 - a part of the contract

LOG2_E = math.log2(math.e)
_PARAMETERS = ("WARPGROUPS", "BLOCK_N", "STAGES", "Q_STAGES", "O_PARTS", "OVERLAP", "PING_PONG",
               "SLACK", "HALF_DIAGONAL", "SWIZZLE", "P_SHARED", "CLUSTER")  # fmt: skip


def variant(workload, config, aligned=True):
    """What the compiler needs for one config, with no device present: a plain dict.

    The compiled kernel depends on no batch or head count, and on no length but for whether blocks
    of keys divide it. TMA reads `aligned` tensors only.
    """
    defines = {name: config[name] for name in _PARAMETERS}
    defines |= {"HEAD_DIM": workload.head_dim, "HEAD_DIM_V": workload.head_dim_v}
    defines |= {
        "CAUSAL": int(workload.causal),
        # A causal kernel masks its first blocks in any case.
        "RAGGED": int(not workload.causal and workload.seqlen_k % config["BLOCK_N"] != 0),
        "DTYPE_FP16": int(workload.dtype == "fp16"),
    }
    threads = 128 * (config["WARPGROUPS"] + 1)
    return {
        "function": "attention_fwd",
        "defines": defines,
        "threads": threads,
        "smem_bytes": _smem_bytes(workload, config),
    }


def _smem_bytes(workload, config):
    """Dynamic shared memory, laid out as the .cu says."""
    rows, width = 64 * config["WARPGROUPS"], config["SWIZZLE"]
    k_chunks, v_chunks = (_chunks(d, width) for d in (workload.head_dim, workload.head_dim_v))
    o_parts = config["O_PARTS"]
    q_chunks = k_chunks if o_parts else max(k_chunks, v_chunks)
    o_chunks = v_chunks // o_parts if o_parts else 0
    q_rows, k_rows = rows * config["Q_STAGES"], config["STAGES"] * config["BLOCK_N"]
    barriers = 4 * config["STAGES"] + 2 * config["Q_STAGES"] * config["WARPGROUPS"]
    tiles = q_rows * q_chunks + k_rows * (k_chunks + v_chunks) + rows * o_chunks
    p_bytes = 2 * rows * config["BLOCK_N"] if config["P_SHARED"] else 0
    return width * tiles + p_bytes + 8 * barriers


def _chunks(head_dim, width):
    """Pieces of `width` bytes of a row of 16-bit elements, of which WGMMA takes 16 at a time."""
    columns = -(-head_dim // 16) * 16
    return -(-2 * columns // width)


def arguments(tensors, workload, config, scale):
    """The grid and the kernel's arguments, in the order of its parameters.

    `tensors` = (q, k, v, out, lse): q, out (batch, heads, seqlen_q, head_dim | head_dim_v); k, v
    (batch, heads_kv, seqlen_k, head_dim | head_dim_v), aligned, rows contiguous; lse (batch, heads,
    seqlen_q), fp32, contiguous. `scale` multiplies q @ k^T and is positive.
    """
    q, k, v, out, lse = tensors
    schedule, tiles = tile_table.tables(workload, config, lse.device)
    n, width = config["BLOCK_N"] // config["CLUSTER"], config["SWIZZLE"]
    maps = [
        {"map": tensor, "box": (1, 1, rows, width // 2), "swizzle_bytes": width}
        for tensor, rows in ((q, 64), (k, n), (v, n), (out, 64))
    ]
    sizes = map(ctypes.c_int, (workload.heads, workload.seqlen_q, workload.seqlen_k))
    scale_log2 = ctypes.c_float(scale * LOG2_E)
    return (len(schedule) - 1, 1, 1), [*maps, lse, schedule, tiles, *sizes, scale_log2]
