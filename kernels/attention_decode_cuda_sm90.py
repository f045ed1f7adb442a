"""Attention of few queries over a cache of keys and values in CUDA C++, for sm90.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

The algorithm, the cache and the masks are those of attention_decode_triton.py, which describes
them. What differs:

* splits follow the whole batch: high where there are many sequences, low where there are few. A
  sequence gets the same bits all the same, as the order of its sum does not depend on them
  (cuda/decode_problem.cuh);
* one warp copies keys and values by TMA for the others, in the order of the cache and also over the
  end of a split. A few blocks are always on their way, 64 KiB in most configs;
* the warps share each block: a part of its keys for scores, and of the columns of its values for
  the output. So no warp's output needs another's at the end;
* both kernels, or the only one, start while the kernel before runs, by programmatic dependent
  launch, and the first one brings what it reads first to the L2 cache meanwhile.

Pages have 16 or 32 keys, or a multiple of 64. Head dimensions are multiples of 64. A KV head has at
most 32 query rows up to head_dim 128, and 16 beyond.

What each parameter trades:
    BLOCK_N           keys that a CTA copies and computes at once
    num_warps         warps of a CTA that compute
    num_stages        blocks of K or V in shared memory
    COPIES_IN_FLIGHT  blocks of K or V on their way at the same time
    CTAS_PER_SM       CTAs that run at the same time on an SM
    LEAF_KEYS         keys of a leaf of the sum: the least that a split has
    MOST_LEAVES       leaves of a sequence: a longer sequence has longer leaves
    TREE_DEPTH        a split has at most 2^TREE_DEPTH leaves; a warp keeps TREE_DEPTH nodes
    SPLIT_COST        what a split is taken to cost beside its keys, in keys
    LAST_CTA_COMBINES whether the CTA that writes the last split of a KV head combines them, and no
                      second kernel
"""

import ctypes

from tunefa.kernels.decode.tensors import (
    descales,
    most_keys,
    score_factors,
    sees_all_keys,
    table_and_sinks,
    table_row,
)
from tunefa.kernels.hopper.tma import is_aligned as is_aligned

from tunefa.spec.rounding import ceil_div, round_up

_COMBINING_CTAS = 2
"""CTAs of the second kernel for each SM: so many find room beside the first kernel's."""
_MOST_SPLITS, _MOST_SCRATCH_BYTES = 128, 2**26
"""Splits of a sequence that have memory, and bytes of all; more only where a sequence must have
more splits."""
SCRATCH_ALONE = True
"""Splits need memory also where there is no second kernel."""
_COUNTER_WORDS = 2
"""Numbers of 8 bytes behind the ends of splits: those of SplitCounter in cuda/decode_counter.cuh.
Where the last CTA combines, SplitArrivals of each KV head of a sequence follow."""

_COMPILED = (
    *("BLOCK_N", "num_warps", "num_stages", "COPIES_IN_FLIGHT", "CTAS_PER_SM"),
    *("LEAF_KEYS", "MOST_LEAVES", "TREE_DEPTH", "LAST_CTA_COMBINES"),
)
"""The parameters that the kernel is compiled for."""


class Strides(ctypes.Structure):
    """The structure of the same name in cuda/decode_problem.cuh."""

    _fields_ = (("batch", ctypes.c_longlong), ("head", ctypes.c_longlong), ("row", ctypes.c_int))


class Sizes(ctypes.Structure):
    """The structure of the same name in cuda/decode_problem.cuh."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("batch", "heads_kv", "seqlen_q", "most_keys")),
        *((name, ctypes.c_int) for name in ("splits_kept", "table_row", "window_left")),
        *((name, ctypes.c_int) for name in ("split_cost", "ctas")),
        *((name, ctypes.c_uint) for name in ("inverse_ctas", "inverse_heads_kv")),
        ("scale_log2", ctypes.c_float),
        ("tanh_scale", ctypes.c_float),
        *((name, ctypes.c_int) for name in ("k_descale_sequence", "k_descale_head")),
        *((name, ctypes.c_int) for name in ("v_descale_sequence", "v_descale_head")),
    )


def _block_m(workload):
    """Query rows of a tile: those of all heads of a group."""
    return round_up(workload.group * workload.seqlen_q, 8)


def _defines(workload, config):
    return {
        "HEAD_DIM": workload.head_dim,
        "HEAD_DIM_V": workload.head_dim_v,
        "BF16": int(workload.dtype == "bf16"),
        "E4M3_CACHE": int(workload.e4m3cache),
        "GROUP": workload.group,
        "CAUSAL": int(not sees_all_keys(workload)),
        "WINDOWED": int(workload.window_left is not None),
        "SOFTCAP": int(workload.softcap),
        "SINKS": int(workload.sinks),
        "PAGE_SIZE": workload.page_size or 0,
        "BLOCK_M": _block_m(workload),
        **{name: config[name] for name in _COMPILED},
    }


def variant(workload, config, aligned=True):
    """What NVRTC needs for one config, with no device present: a plain dict.

    The compiled kernel depends on no batch, head count or number of keys. It reads `aligned`
    tensors only.
    """
    return {
        "function": "attention_decode",
        "defines": _defines(workload, config),
        "threads": 32 * config["num_warps"] + 32,
        "overlaps_kernel_before": True,
    }


def postprocess(workload, config):
    """The variant of the kernel that combines the splits of a row; None where there is none."""
    if config["LAST_CTA_COMBINES"]:
        return None
    return {
        "function": "combine_splits",
        "defines": _defines(workload, config) | {"COMBINE_SPLITS": 1},
        "threads": 128,
        "smem_bytes": 0,
        "overlaps_kernel_before": True,
    }


def scratch(tensors, spec):
    """Shapes and dtypes of the rows of splits, and of their maxima and sums with the counter, as
    the kernels lay them out. Each call has its own."""
    import torch  # importing it takes seconds, and compiling does not need it

    workload, config = spec.workload, spec.config
    leaves = ceil_div(most_keys(tensors, workload), config["LEAF_KEYS"])
    most = min(leaves, config["MOST_LEAVES"])
    rows = workload.batch * workload.heads * workload.seqlen_q
    usual = min(_MOST_SPLITS, _MOST_SCRATCH_BYTES // (rows * (4 * workload.head_dim_v + 8)))
    splits = max(1, min(most, max(usual, ceil_div(most, 2 ** config["TREE_DEPTH"]))))
    words = _COUNTER_WORDS + config["LAST_CTA_COMBINES"] * workload.batch * workload.heads_kv
    ends = rows + ceil_div(words, splits), splits, 2
    return ((rows, splits, workload.head_dim_v), torch.float32), (ends, torch.float32)


def _sizes(tensors, spec):
    workload, config = spec.workload, spec.config
    ctas = _ctas(spec, tensors[-1].shape[1])
    return Sizes(
        workload.batch, workload.heads_kv, workload.seqlen_q, most_keys(tensors, workload),
        tensors[-1].shape[1],
        table_row(tensors, workload), workload.window_left or 0, config["SPLIT_COST"], ctas,
        _inverse(ctas), _inverse(workload.heads_kv), *score_factors(spec),
        *(step for each in descales(tensors, workload) for step in each.stride()[:2]),
    )  # fmt: skip


def _inverse(divisor):
    """The number with which the kernels divide by a multiplication."""
    return (2**32 // divisor + 1) % 2**32  # 1 has none


def _ctas(spec, splits):
    """CTAs of the first kernel: as many as the device holds at once, or as there are splits."""
    most = spec.workload.batch * spec.workload.heads_kv * splits
    return min(most, spec.sms * spec.config["CTAS_PER_SM"])


def _strides(tensor):
    return Strides(*tensor.stride()[:3])


def arguments(tensors, spec):
    """The grid and the first kernel's arguments, in the order of its parameters, for the tensors
    of `arguments` in attention_decode_triton.py."""
    q, k, v, out, lse, seqlens, *_, partial, ends = tensors
    workload, config = spec.workload, spec.config
    table, sinks = table_and_sinks(tensors, workload)
    rows = min(config["BLOCK_N"], workload.page_size or config["BLOCK_N"])
    widest = 128 if workload.head_dim % 128 == workload.head_dim_v % 128 == 0 else 64
    panel = widest if workload.e4m3cache else 128
    box = (1, 1, rows, panel // workload.kv_bytes)
    maps = [{"map": each, "box": box, "swizzle_bytes": panel, "by_panels": True} for each in (k, v)]
    return (_ctas(spec, partial.shape[1]), 1, 1), [
        q, *maps, out, lse, seqlens, table, sinks, *descales(tensors, workload), partial, ends,
        _strides(q), _strides(out), _sizes(tensors, spec),
    ]  # fmt: skip


def postprocess_arguments(tensors, spec):
    """The grid and the second kernel's arguments, for the tensors of `arguments`."""
    _, _, _, out, lse, seqlens, *_, partial, ends = tensors
    workload = spec.workload
    rows = workload.batch * workload.heads * workload.seqlen_q
    return (min(rows, _COMBINING_CTAS * spec.sms), 1, 1), [
        out, lse, seqlens, table_and_sinks(tensors, workload)[1],
        descales(tensors, workload)[1], partial, ends, _strides(out), _sizes(tensors, spec),
    ]  # fmt: skip
