"""Multi-head latent attention of few queries over a cache in CUDA C++, for sm90.

    out = softmax(scale * q @ kv^T) @ kv[:, :head_dim_v],     lse = log(sum(exp(scale * q @ kv^T)))

The problem, the cache, the masks and the rule of splits are those of
attention_decode_mla_triton.py, which describes them. What differs:

* a CTA has a tile of 64 query rows: one warp copies the cache by TMA, and two consumer warpgroups
  share the tile's output in registers and multiply by WGMMA, with both operands in shared memory
  (attention_decode_mla_cuda_sm90.cu);
* copies go on over the end of a split: those of the next one begin before it is computed, and so do
  those of its queries;
* where bits may follow the batch (`batchvariant`), a sequence has only as many splits as the device
  computes at once, together with those of the other sequences;
* two tiles of the same keys may form a cluster, which reads each key from L2 once.

Pages need 16 keys or more, head_dim_v is a multiple of 128, and head_dim is 64 more.

What each parameter trades:
    BLOCK_N         keys of a block; each warpgroup computes the scores of one: full tiles of WGMMA
                    against more blocks in flight
    num_stages      blocks in shared memory, in which two are computed at a time
    CLUSTER_SIZE    2: two tiles share each copy, and wait for one another
    MIN_SPLIT_KEYS  keys of a split: more CTAs for short sequences against less to combine
    MAX_SPLITS      splits of a sequence: the same for long ones
"""

import ctypes
from types import SimpleNamespace

from tunefa.kernels.attention_decode_triton import scratch as scratch_of_splits
from tunefa.kernels.decode.tensors import most_keys, score_factors, sees_all_keys, table_row
from tunefa.kernels.hopper.tma import is_aligned as is_aligned

from tunefa.spec.rounding import ceil_div

_ROWS = 64
"""Query rows of a tile."""
_COMBINING_CTAS = 8
"""CTAs of the second kernel for each SM."""


class Strides(ctypes.Structure):
    """The structure of the same name in cuda/mla_problem.cuh."""

    _fields_ = (("batch", ctypes.c_longlong), ("head", ctypes.c_longlong), ("row", ctypes.c_int))


class Sizes(ctypes.Structure):
    """The structure of the same name in cuda/mla_problem.cuh."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("batch", "heads_kv", "seqlen_q", "most_keys")),
        *((name, ctypes.c_int) for name in ("row_tiles", "splits_kept", "table_row")),
        *((name, ctypes.c_int) for name in ("min_split_keys", "max_splits")),
        ("scale_log2", ctypes.c_float),
    )


def _defines(workload, config):
    return {
        "HEAD_DIM": workload.head_dim,
        "HEAD_DIM_V": workload.head_dim_v,
        "BF16": int(workload.dtype == "bf16"),
        "GROUP": workload.group,
        "CAUSAL": int(not sees_all_keys(workload)),
        "PAGE_SIZE": workload.page_size or 0,
        **{name: config[name] for name in ("BLOCK_N", "num_stages", "CLUSTER_SIZE")},
    }


def variant(workload, config, aligned=True):
    """What NVRTC needs for one config, with no device present: a plain dict.

    The compiled kernel depends on no batch and no number of keys. It reads `aligned` tensors only.
    """
    return {
        "function": "attention_decode_mla",
        "defines": _defines(workload, config),
        "threads": 384,
        "overlaps_kernel_before": True,
    }


def postprocess(workload, config):
    """The variant of the kernel that combines the splits of a row."""
    return {
        "function": "combine_splits",
        "defines": _defines(workload, config) | {"COMBINE_SPLITS": 1},
        "threads": workload.head_dim_v // 4,
        "smem_bytes": 0,
        "overlaps_kernel_before": True,
    }


def _row_tiles(spec):
    rows = ceil_div(spec.workload.group * spec.workload.seqlen_q, _ROWS)
    cluster = spec.config["CLUSTER_SIZE"]
    return ceil_div(rows, cluster) * cluster


def _most_splits(spec):
    """The most splits of a sequence."""
    workload, most = spec.workload, spec.config["MAX_SPLITS"]
    if not workload.batchvariant:
        return most
    tiles = workload.batch * workload.heads_kv * _row_tiles(spec)
    return max(1, min(most, spec.sms // tiles))


def scratch(tensors, spec):
    """Shapes and dtypes of the outputs of splits and of their logsumexps, as the kernels lay them
    out. Each call has its own."""
    config = {**spec.config, "MAX_SPLITS": _most_splits(spec)}
    return scratch_of_splits(tensors, SimpleNamespace(workload=spec.workload, config=config))


def _sizes(tensors, spec):
    workload, config = spec.workload, spec.config
    return Sizes(
        workload.batch, workload.heads_kv, workload.seqlen_q, most_keys(tensors, workload),
        _row_tiles(spec), tensors[-1].shape[1], table_row(tensors, workload),
        config["MIN_SPLIT_KEYS"], _most_splits(spec), score_factors(spec)[0],
    )  # fmt: skip


def _strides(tensor):
    return Strides(*tensor.stride()[:3])


def arguments(tensors, spec):
    """The grid and the first kernel's arguments, in the order of its parameters, for the tensors
    of `arguments` in attention_decode_mla_triton.py."""
    q, kv, _, out, lse, seqlens, *_, partial, partial_lse = tensors
    workload, config = spec.workload, spec.config
    table, cluster = tensors[6] if workload.page_size else seqlens, config["CLUSTER_SIZE"]
    rows = config["BLOCK_N"] // cluster
    if workload.page_size:
        rows = min(rows, workload.page_size)
    kv_map = {"map": kv, "box": (1, 1, rows, 64), "swizzle_bytes": 128}
    most = workload.batch * workload.heads_kv * _row_tiles(spec) * partial_lse.shape[1]
    return (min(most, spec.sms // cluster * cluster), 1, 1), [
        q, kv_map, out, lse, seqlens, table, partial, partial_lse, _strides(q), _strides(out),
        _sizes(tensors, spec),
    ]  # fmt: skip


def postprocess_arguments(tensors, spec):
    """The grid and the second kernel's arguments, for the tensors of `arguments`."""
    _, _, _, out, lse, seqlens, *_, partial, partial_lse = tensors
    workload = spec.workload
    rows = workload.batch * workload.heads * workload.seqlen_q
    return (min(rows, _COMBINING_CTAS * spec.sms), 1, 1), [
        out, lse, seqlens, partial, partial_lse, _strides(out), _sizes(tensors, spec),
    ]  # fmt: skip
