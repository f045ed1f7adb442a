"""Host side of attention_bwd_two_pass_cuda_sm90.cu: what is compiled, and how it is launched.

The .cu describes the algorithm. What each parameter trades; names end in 1 for the key pass, which
computes dK and dV, and in 2 for the query pass, which computes dQ:
    BLOCK_M1, BLOCK_N2          fewer, longer steps, whose products read less from shared memory,
                                against registers and shared memory; any multiple of 16
    Q_STAGES1, DO_STAGES1       blocks of Q, and of dO, in flight against shared memory
    P_STAGES1                   2: a block of P is handed over before the one before it is
                                taken, against shared memory
    P_BYTES1                    P between the warpgroups of the key pass in 4: fp32, 2: fp16, for
                                less shared memory and less traffic of it
    KV_IN_REGISTERS1            1, 2: half of the columns of K and V, or all, are left operands from
                                registers, which saves traffic of shared memory
    EARLY_DP1                   dP of the next step starts 1: before dK of this one, so that dS is
                                computed during dK; 0: after it, so that Q is released earlier
    CLUSTER_SIZE1               2: two CTAs with neighbouring keys share the reads of Q and dO from
                                the L2 cache, but wait for each other
    K_STAGES2, V_STAGES2        blocks of K, and of V, in flight against shared memory
    PERSISTENT1, PERSISTENT2    1: a CTA works on several tiles, and loads early for the next one,
                                against a fixed distribution of the tiles; PERSISTENT1 takes
                                shared memory for dK and dV on their way out
    DEPENDENT_LAUNCH            1: CTAs of the key pass start, and load K, where the query pass
                                leaves room (programmatic dependent launch)
    L2_SECTION_HEADS            causal masks and windows: KV heads whose CTAs run together, so that
                                what they share stays in the L2 cache
"""

import ctypes
import math

from tunefa.kernels.gluon.host import gradient_tiles
from tunefa.kernels.hopper.gradients import is_aligned  # noqa: F401 - a part of the contract

from tunefa.spec.rounding import ceil_div, round_up

LOG2_E = math.log2(math.e)
_THREADS = 384
_ROWS = 128
"""Query rows of a CTA of the query pass, 64 of each warpgroup."""
_FAR = 2**29
"""A window that hides no key."""
_TILE_COSTS = 2, 1
"""What a tile of the key pass, and one of the query pass, cost beside their steps, in steps: what a
CTA owns comes in, and sums go out. Estimates."""
_KEY_PASS = ("BLOCK_M", "Q_STAGES", "DO_STAGES", "P_STAGES", "KV_IN_REGISTERS", "EARLY_DP",
             "CLUSTER_SIZE", "PERSISTENT")  # fmt: skip
"""Parameters that are macros of the key pass; their names end in 1 in a config."""
_QUERY_PASS = "BLOCK_N", "K_STAGES", "V_STAGES", "PERSISTENT"
"""Parameters that are macros of the query pass; their names end in 2 in a config."""


def padded_rows(seqlen_q, config):
    """Returns the rows of a query head in the memory of lse and delta: whole tiles of the query
    pass, and whole blocks of the key pass."""
    return max(round_up(seqlen_q, _ROWS), round_up(seqlen_q, config["BLOCK_M1"]))


def _keys(config):
    """Returns the keys of a CTA of the key pass, or of a cluster."""
    return 64 * config["CLUSTER_SIZE1"]


def _defines(workload, config):
    left, right = workload.band
    return {
        "HEAD_DIM": workload.head_dim,
        "HEAD_DIM_V": workload.head_dim_v,
        "P_FP16": int(config["P_BYTES1"] == 2),
        "DTYPE_FP16": int(workload.dtype == "fp16"),
        "CAUSAL": int(right is not None),
        "WINDOWED": int(left is not None),
    }


def variant(workload, config, aligned=True):
    """Returns what the compiler needs for the key pass of one config: a plain dict.

    The compiled kernels depend on no batch, head count or length, and on no window size. TMA reads
    `aligned` tensors only.
    """
    return {
        "function": "key_pass",
        "defines": _defines(workload, config) | {name: config[f"{name}1"] for name in _KEY_PASS},
        "threads": _THREADS,
        "overlaps_kernel_before": config["DEPENDENT_LAUNCH"] == 1,
    }


def preprocess(workload, config):
    """The variant of the query pass."""
    size = _query_smem_bytes(workload, config)
    own = {name: config[f"{name}2"] for name in _QUERY_PASS}
    defines = _defines(workload, config) | {"QUERY_PASS": 1, **own, "SMEM_BYTES": size}
    return {
        "function": "query_pass",
        "defines": defines,
        "threads": _THREADS,
        "smem_bytes": size,
    }


def _query_smem_bytes(workload, config):
    """Returns the shared memory of the query pass: Q and dO, stages of K and V, barriers."""
    k_stages, v_stages, block = (config[f"{name}2"] for name in ("K_STAGES", "V_STAGES", "BLOCK_N"))
    of_k, of_v = (2 * round_up(each, 64) for each in (workload.head_dim, workload.head_dim_v))
    barriers = 6 + 2 * (k_stages + v_stages)
    return _ROWS * (of_k + of_v) + block * (k_stages * of_k + v_stages * of_v) + 8 * barriers


def unordered(workload, config):
    """No output: each is summed by one CTA, in one order."""
    return ()


def scratch(tensors, spec):
    """The memory of (lse in powers of two, delta): `padded_rows` numbers of each query head."""
    import torch  # importing it takes seconds, and compiling does not need it

    w = spec.workload
    size = w.batch * w.heads * padded_rows(w.seqlen_q, spec.config)
    return ((size,), torch.float32), ((size,), torch.float32)


class _Strides(ctypes.Structure):
    """The strides of batches, heads and rows, in elements."""

    _fields_ = tuple((name, ctypes.c_longlong) for name in ("batch", "head", "row"))


def preprocess_arguments(tensors, spec):
    """The grid and the arguments of the query pass; see `arguments`."""
    q, k, v, out, lse, dout, dlse, dq, _, _, lse_log2, delta = tensors
    w, config = spec.workload, spec.config
    of_keys = config["BLOCK_N2"]
    maps = [_map(q), _map(k, of_keys), _map(v, of_keys), _map(dout), _map(dq)]
    tiles = w.batch * w.heads * ceil_div(w.seqlen_q, _ROWS)
    ctas, table = tiles, lse
    if config["PERSISTENT2"]:
        ctas = min(tiles, spec.sms)
        table = gradient_tiles.table(query_costs(w, config), ctas, q.device)
    strides = [_Strides(*each.stride()[:3]) for each in (out, dlse)]
    sums = [out, lse, dlse, lse_log2, delta]
    return (ctas, 1, 1), [*maps, *sums, table, *strides, *_sizes(spec, tiles)]


def arguments(tensors, spec):
    """The grid and the arguments of the key pass, in the order of its parameters.

    `tensors` = (q, k, v, out, lse, dout, dlse, dq, dk, dv), then the memory of `scratch`: q and dq
    (batch, heads, seqlen_q, head_dim), out and dout (batch, heads, seqlen_q, head_dim_v), k and dk
    (batch, heads_kv, seqlen_k, head_dim), v and dv (batch, heads_kv, seqlen_k, head_dim_v),
    aligned, rows contiguous; lse and dlse (batch, heads, seqlen_q), fp32, lse contiguous. `scale`
    multiplies q @ k^T and is positive.
    """
    q, k, v, _, _, dout, _, _, dk, dv, lse_log2, delta = tensors
    w, config = spec.workload, spec.config
    of_rows, cluster = config["BLOCK_M1"] // config["CLUSTER_SIZE1"], config["CLUSTER_SIZE1"]
    maps = [_map(q, of_rows), _map(k), _map(v), _map(dout, of_rows), _map(dk), _map(dv)]
    tiles = w.batch * w.heads_kv * ceil_div(w.seqlen_k, _keys(config))
    lists, table = tiles, lse_log2
    if config["PERSISTENT1"]:
        lists = min(tiles, spec.sms // cluster)
        table = gradient_tiles.table(key_costs(w, config), lists, q.device)
    sizes = _sizes(spec, tiles)
    return (lists * cluster, 1, 1), [*maps, lse_log2, delta, table, *sizes]


def _sizes(spec, tiles):
    """Returns the numbers that both passes take."""
    w, config, scale = spec.workload, spec.config, spec.scale
    rows = padded_rows(w.seqlen_q, config)
    numbers = (w.heads, w.heads_kv, w.seqlen_q, w.seqlen_k, *_edges(w), rows, tiles)
    section = config["L2_SECTION_HEADS"]
    return [*map(ctypes.c_int, (*numbers, section)), *map(ctypes.c_float, (scale * LOG2_E, scale))]


def _edges(workload):
    """Returns (diagonal, window_keys): row i sees the last window_keys keys up to key i + diagonal.
    An edge that there is not is one that hides no key."""
    left, right = (_FAR if side is None else side for side in workload.band)
    return workload.seqlen_k - workload.seqlen_q + right, left + 1 + right


def key_costs(workload, config):
    """Returns what each tile of the key pass costs, by its number: its blocks of query rows, and
    what it costs beside them."""
    keys, block = _keys(config), config["BLOCK_M1"]
    diagonal, window_keys = _edges(workload)
    of_tile = []
    for key in range(0, workload.seqlen_k, keys):
        first = max(key - diagonal, 0) // block
        end = min(max(key + keys - 1 - diagonal + window_keys, 0), workload.seqlen_q)
        of_tile.append(workload.group * max(1, ceil_div(end, block) - first) + _TILE_COSTS[0])
    heads = workload.batch * workload.heads_kv
    return gradient_tiles.costs(of_tile, heads, config["L2_SECTION_HEADS"])


def query_costs(workload, config):
    """Returns what each tile of the query pass costs, by its number: its blocks of keys, and what
    it costs beside them."""
    block, (diagonal, window_keys) = config["BLOCK_N2"], _edges(workload)
    of_tile = []
    for row in reversed(range(0, workload.seqlen_q, _ROWS)):
        seen = min(workload.seqlen_k, min(row + _ROWS, workload.seqlen_q) + diagonal)
        end = max(1, ceil_div(max(seen, 0), block))
        first = max(row + diagonal - window_keys + 1, 0) // block
        of_tile.append(end - min(first, end - 1) + _TILE_COSTS[1])
    heads = workload.batch * workload.heads
    return gradient_tiles.costs(of_tile, heads, config["L2_SECTION_HEADS"] * workload.group)


def _map(tensor, rows=64):
    """A tensor as TMA copies it, by so many rows and 64 columns at a time."""
    return {"map": tensor, "box": (1, 1, rows, 64), "swizzle_bytes": 128}
