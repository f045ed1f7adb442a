"""Host side of attention_fwd_cuda_sm90.cu: what is compiled for a workload, and how it is launched.

The .cu describes the algorithm. What each parameter trades:
    WARPGROUPS            rows per tile against registers per thread
    BLOCK_N               fewer, longer steps, and queries read less often, against registers and
                          shared memory; any multiple of 16, of 32 with e4m3
    num_stages            blocks of K and of V in flight against shared memory
    Q_STAGES              2: the next tile's queries arrive early, for shared memory
    EPILOGUE_SUBTILE      0: the output leaves through the queries' buffer; 1, 2: through a buffer
                          of its own, in as many trips, and the next queries arrive meanwhile. With
                          e4m3 always 1
    INTRA_WG_OVERLAP      1: a block's softmax runs while the output of the block before is
                          multiplied; 0: fewer registers, and other warpgroups fill the gaps
    PING_PONG             1: warpgroups use the tensor cores one after the other
    RESCALE_THRESHOLD     powers of two by which scores may exceed their row's maximum before it
                          follows them; a warp whose maxima all stay need not rescale its output.
                          With e4m3, which has less room, half as many
    SPLIT_DIAGONAL_BLOCK  1: of a causal tile's first block, only the half that can be seen is
                          multiplied
    SWIZZLE_BYTES         bytes of a row that lie together in shared memory: narrower, for head
                          dimensions that would leave the last 128 bytes half empty
    P_IN_SMEM             1: probabilities go to the second product through shared memory, which
                          frees BLOCK_N / 4 registers per thread
    CLUSTER_SIZE          2: two CTAs share K and V, of which each reads one half: half the traffic
                          from L2, and each waits for the slower
    L2_SECTION_MB         causal: MiB of K and V of the heads whose tiles are worked on together, so
                          that they stay in the L2 cache
    DEPENDENT_LAUNCH      1: CTAs start while the kernel before ends, and bring what they read first
                          to the L2 cache meanwhile: less time for short calls
    FP16_PV               1: with e4m3, probabilities and V are multiplied in fp16. That takes the
                          tensor cores twice as long, but probabilities are rounded to 11 bits and
                          not to 4, and sums need no second level
"""

import ctypes
import math

from tunefa.kernels.hopper import first_tiles, transposed_v
from tunefa.kernels.hopper.tile_table import specialize  # noqa: F401 - a part of the contract
from tunefa.kernels.hopper.tma import is_aligned  # noqa: F401 - a part of the contract

from tunefa.spec.rounding import ceil_div, round_up

LOG2_E = math.log2(math.e)
_PARAMETERS = (
    *("WARPGROUPS", "BLOCK_N", "num_stages", "Q_STAGES", "EPILOGUE_SUBTILE", "INTRA_WG_OVERLAP"),
    *("PING_PONG", "RESCALE_THRESHOLD", "SPLIT_DIAGONAL_BLOCK", "SWIZZLE_BYTES", "P_IN_SMEM"),
    *("CLUSTER_SIZE", "DEPENDENT_LAUNCH", "FP16_PV"),
)
_SCRATCH = 8
"""Tensors of a call in e4m3 before those of `scratch`."""
_INVERSE_WORDS, _MAXIMA = 4, 512
"""Words before the inverse magnitudes of columns, and floats behind the promoted sums of a
warpgroup, as in attention_fwd_cuda_sm90.cu."""
_MOST_SHARED_COLUMNS = 128
"""Columns of V whose promoted sums lie in shared memory."""
_V_THREADS, _V_KEYS = 256, 128
"""Threads and keys of one CTA of `transpose_v` and of `widen_v`, as in cuda/transpose_e4m3.cuh and
cuda/widen_e4m3.cuh."""


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
        "DTYPE_E4M3": int(_is_e4m3(workload)),
    }
    defines |= _sums(workload)
    threads = 128 * (config["WARPGROUPS"] + 1)
    return {
        "function": "attention_fwd",
        "defines": defines,
        "threads": threads,
        "overlaps_kernel_before": config["DEPENDENT_LAUNCH"] == 1,
    }


def _sums(workload):
    """Macros: whether sums of e4m3 have a second level in fp32."""
    return {"TWO_LEVEL_SUMS": int(workload.accuracy != "fast")} if _is_e4m3(workload) else {}


def _is_e4m3(workload):
    return workload.dtype == "e4m3"


def _element(workload):
    """Bytes."""
    return 1 if _is_e4m3(workload) else 2


def preprocess(workload, config):
    """What writes V^T for 8-bit products, or V in fp16; None where operands have 16 bits."""
    if not _is_e4m3(workload):
        return None
    function = "widen_v" if config["FP16_PV"] else "transpose_v"
    return {
        "function": function,
        "defines": {function.upper(): 1, "HEAD_DIM_V": workload.head_dim_v, **_sums(workload)},
        "threads": _V_THREADS,
        "smem_bytes": 0,
    }


def scratch(tensors, spec):
    """Memory for V^T, or for V in fp16. Two-level sums also need memory for V's inverse magnitudes,
    and for promoted sums where shared memory has no room for them."""
    import torch  # importing it takes seconds, and compiling does not need it

    workload, config = spec.workload, spec.config
    if config["FP16_PV"]:
        return [(tuple(tensors[2].shape), torch.float16)]
    made = transposed_v.scratch(workload)
    if not _sums(workload)["TWO_LEVEL_SUMS"]:
        return made
    pieces, width = ceil_div(workload.seqlen_k, _V_KEYS), workload.head_dim_v
    inverse = (workload.batch, workload.heads_kv, pieces, _INVERSE_WORDS + width // 2)
    made.append((inverse, torch.int32))
    if width > _MOST_SHARED_COLUMNS:
        ctas = len(first_tiles.tables(spec, tensors[0].device)[0]) - 1
        made.append(((ctas, config["WARPGROUPS"], 64 * width + _MAXIMA), torch.float32))
    return made


def preprocess_arguments(tensors, spec):
    """Grid and arguments of `transpose_v` or `widen_v`."""
    v, (made, *two_level) = tensors[2], tensors[_SCRATCH:]
    batch, heads_kv, seqlen_k, _ = v.shape
    sizes, keys = [heads_kv, seqlen_k], seqlen_k
    if not spec.config["FP16_PV"]:
        keys = made.shape[3]
        sizes.append(keys // 4)
    strides = map(ctypes.c_longlong, transposed_v.strides(v))
    # Of the three axes only the first takes more than 65,535.
    grid = batch * heads_kv * ceil_div(keys, _V_KEYS), 1, 1
    return grid, [v, made, *two_level[:1], *map(ctypes.c_int, sizes), *strides]


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its parameters.

    `tensors` = (q, k, v, out, lse): q, out (batch, heads, seqlen_q, head_dim | head_dim_v); k, v
    (batch, heads_kv, seqlen_k, head_dim | head_dim_v), aligned, rows contiguous; lse (batch, heads,
    seqlen_q), fp32, contiguous. With e4m3 the descales of q, k and v follow, each (batch,
    heads_kv), fp32, contiguous, or empty for 1, and what `scratch` says. `scale` multiplies q @ k^T
    and is positive.
    """
    q, k, v, out, lse, *more = tensors
    workload, config = spec.workload, spec.config
    schedule, tiles = first_tiles.tables(spec, lse.device)
    n, width = config["BLOCK_N"] // config["CLUSTER_SIZE"], config["SWIZZLE_BYTES"]
    k_columns = width // _element(workload)
    maps = [_map(q, 64, k_columns, width), _map(k, n, k_columns, width)]
    descales = []
    if _is_e4m3(workload):
        *descales, v = more[:4]
        descales += [ctypes.c_int(workload.heads_kv), *more[4:]]
    if _is_e4m3(workload) and not config["FP16_PV"]:
        # As many keys as divide a block lie together.
        keys = next(keys for keys in (128, 64, 32) if config["BLOCK_N"] % keys == 0)
        maps.append(
            _map(v, round_up(workload.head_dim_v, 16) // config["CLUSTER_SIZE"], keys, keys)
        )
    else:
        maps.append(_map(v, n, width // 2, width))
    maps.append(_map(out, 64, width // 2, width))
    sizes = map(ctypes.c_int, (workload.heads, workload.seqlen_q, workload.seqlen_k))
    scale_log2 = ctypes.c_float(spec.scale * LOG2_E)
    return (len(schedule) - 1, 1, 1), [
        *maps, lse, *descales, schedule, tiles, *sizes, scale_log2,
    ]  # fmt: skip


def _map(tensor, rows, columns, swizzle_bytes):
    """A tensor as TMA copies it, by so many rows and columns at a time."""
    return {"map": tensor, "box": (1, 1, rows, columns), "swizzle_bytes": swizzle_bytes}
