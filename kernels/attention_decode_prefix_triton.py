"""Attention of few queries over a cache whose sequences begin with the same pages, in Triton, for
sm80 and newer.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

Sequences that begin with the same text have the same first pages in a paged cache. The queries of
all of them attend to these pages together, so that a page is read once for a tile of 64 or 128
query rows and not once for each sequence (Hydragen: Juravsky et al., 2024, arXiv:2402.05099).
Then each sequence attends to its own pages, and the partial results are combined by their
logsumexps in fp32.

A call starts three kernels:

* the first one compares the block tables. A CTA counts the leading pages of a sequence that equal
  those of the first sequence with keys; the least of these counts is the common prefix. Keys that
  not all queries of a sequence see are no part of it. Sequences without keys do not count;
* the second one attends. Tiles of the prefix come first, each with a split of the prefix's keys,
  about PREFIX_TILES_PER_SM for each SM. Tiles of single sequences follow, with splits as in
  attention_decode_triton.py. A CTA takes the tile that is free next, so that products of the prefix
  and copies of single sequences take place on an SM at the same time;
* the third one combines the splits of a row.

Lengths and block tables are read on the device alone. So a CUDA graph may be replayed with others,
also where no page is common. The splits of the prefix depend on the batch, and so do the bits of
the result.

The cache, the masks and the sinks are those of attention_decode_triton.py, without windows and
caches in e4m3.

This file is the host side. The device code is triton/attention_decode_prefix.py.

What each parameter trades:
    PREFIX_BLOCK_M       query rows of a tile of the prefix: fewer reads of its keys from the L2
                         cache against registers
    BLOCK_N              keys per step: longer copies against shared memory
    num_warps            warps that copy and compute one tile
    num_stages           blocks of K and V in flight against shared memory
    CTAS_PER_SM          CTAs that run at the same time: more bytes in flight against shared memory
    PREFIX_TILES_PER_SM  tiles of the prefix for each SM: a better balance against less to combine
    MIN_SPLIT_KEYS       keys of a split: more CTAs for short sequences against less to combine
    MAX_SPLITS           splits of a sequence beside those of the prefix: the same for long ones
    DEPENDENT_LAUNCH     1: each kernel starts while the one before it runs (sm90 on)
"""

from __future__ import annotations

from tunefa.kernels.attention_decode_triton import is_aligned as is_aligned
from tunefa.kernels.attention_decode_triton import splits_with_memory
from tunefa.kernels.decode.tensors import (
    most_keys,
    score_factors,
    sees_all_keys,
    table_and_sinks,
    table_row,
)

from tunefa.spec.rounding import ceil_div, next_pow2

_MOST_ROWS = 64
"""The most query rows of a tile of one sequence; more are several tiles."""
_ENTRIES = 1024
"""Entries of two block tables that the first kernel compares at once."""
_CHUNK = 16
"""Splits that the third kernel combines at once."""


def _block_m(workload):
    """Query rows of a tile of one sequence: those of all heads of a group."""
    return min(_MOST_ROWS, max(16, next_pow2(workload.group * workload.seqlen_q)))


def _constants(workload, config):
    """Everything the compiler of the second kernel sees as a constant."""
    pad_d, pad_dv = (max(16, next_pow2(d)) for d in (workload.head_dim, workload.head_dim_v))
    return {
        "HEAD_DIM": workload.head_dim,
        "HEAD_DIM_V": workload.head_dim_v,
        "PAD_D": pad_d,
        "PAD_DV": pad_dv,
        "GROUP": workload.group,
        "CAUSAL": not sees_all_keys(workload),
        "SOFTCAP": workload.softcap,
        "PAGE_SIZE": workload.page_size,
        "PREFIX_BLOCK_M": config["PREFIX_BLOCK_M"],
        "BLOCK_M": _block_m(workload),
        "BLOCK_N": config["BLOCK_N"],
        "DEPENDENT_LAUNCH": config["DEPENDENT_LAUNCH"],
    }


def _constants_of_counting(workload, config):
    """Everything the compiler of the first kernel sees as a constant."""
    launch = config["DEPENDENT_LAUNCH"]
    return {"PAGE_SIZE": workload.page_size, "ENTRIES": _ENTRIES, "DEPENDENT_LAUNCH": launch}


def _constants_of_combining(workload, config):
    """Everything the compiler of the third kernel sees as a constant."""
    own = _constants(workload, config)
    made = {name: own[name] for name in ("HEAD_DIM_V", "PAD_DV", "GROUP")}
    made |= {"SINKS": workload.sinks, "PAGE_SIZE": workload.page_size, "BLOCK_N": own["BLOCK_N"]}
    return {**made, "CHUNK": _CHUNK, "DEPENDENT_LAUNCH": config["DEPENDENT_LAUNCH"]}


def counting_function():
    """Returns the first kernel, which imports Triton."""
    from tunefa.kernels.triton.attention_decode_prefix import count_shared_pages

    return count_shared_pages


def device_function():
    """Returns the second kernel, which imports Triton."""
    from tunefa.kernels.triton.attention_decode_prefix import attention_decode_prefix

    return attention_decode_prefix


def combining_function():
    """Returns the third kernel, which imports Triton."""
    from tunefa.kernels.triton.attention_decode_prefix import combine_with_prefix

    return combine_with_prefix


def _strides(name, axes):
    """The parameters that are strides. Those of batches and pages pass 2^31 elements."""
    wide = ("batch", "page")
    return {f"{name}_{axis}": "i64" if axis in wide else "i32" for axis in axes}


def preprocess(workload, config):
    """The variant of the kernel that counts shared pages."""
    constants = _constants_of_counting(workload, config)
    sizes = ("table_row", "batch", "most_keys", "hidden_keys")
    return {
        "function": counting_function,
        "signature": {
            **dict.fromkeys(("seqlens_ptr", "table_ptr", "found_ptr"), "*i32"),
            **dict.fromkeys(sizes, "i32"),
            **dict.fromkeys(constants, "constexpr"),
        },
        "constants": constants,
        "aligned": [],
        "options": {"num_warps": 4},
    }


def variant(workload, config, aligned=True):
    """What the Triton compiler needs for one config, with no device present: a plain dict.

    `aligned`: whether all pointers and strides are multiples of 16, as in contiguous tensors of a
    head_dim that is one. The compiled kernel depends on no batch, head count or number of keys.
    """
    constants, kind = _constants(workload, config), workload.dtype
    of_cache = ("page", "head", "slot")
    strides = {
        **_strides("q", ("batch", "head", "row")),
        **_strides("k", of_cache),
        **_strides("v", of_cache),
    }
    sizes = ("table_row", "batch", "heads_kv", "seqlen_q", "most_keys", "prefix_tiles", "row_tiles",
             "splits_kept", "prefix_splits", "min_split_keys", "max_splits")  # fmt: skip
    signature = {
        **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), f"*{kind}"),
        **dict.fromkeys(("seqlens_ptr", "table_ptr", "found_ptr"), "*i32"),
        **dict.fromkeys(("partial_ptr", "partial_lse_ptr"), "*fp32"),
        **strides,
        **dict.fromkeys(sizes, "i32"),
        **dict.fromkeys(("scale_log2", "tanh_scale"), "fp32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    read = ["q_ptr", "k_ptr", "v_ptr", *strides]
    return {
        "function": device_function,
        "signature": signature,
        "constants": constants,
        "aligned": [*(read if aligned else []), "partial_ptr", "partial_lse_ptr"],
        "options": {
            "num_warps": config["num_warps"],
            "num_stages": config["num_stages"],
            **_overlapping(config),
        },
    }


def postprocess(workload, config):
    """The variant of the kernel that combines the splits of a row."""
    constants = _constants_of_combining(workload, config)
    sizes = ("batch", "heads", "seqlen_q", "most_keys", "splits_kept", "prefix_splits",
             "min_split_keys", "max_splits")  # fmt: skip
    signature = {
        "out_ptr": f"*{workload.dtype}",
        "lse_ptr": "*fp32",
        "seqlens_ptr": "*i32",
        "sinks_ptr": "*fp32",
        "found_ptr": "*i32",
        **dict.fromkeys(("partial_ptr", "partial_lse_ptr"), "*fp32"),
        **_strides("o", ("batch", "head", "row")),
        **dict.fromkeys(sizes, "i32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    return {
        "function": combining_function,
        "signature": signature,
        "constants": constants,
        "aligned": ["partial_ptr", "partial_lse_ptr"],
        "options": {"num_warps": 2, **_overlapping(config)},
    }


def _overlapping(config):
    """The options of a kernel that may start while the one before it runs."""
    return {"launch_pdl": True} if config["DEPENDENT_LAUNCH"] else {}


def _prefix_tiles(workload, config):
    """Tiles of query rows of all sequences, for one KV head."""
    rows = workload.batch * workload.group * workload.seqlen_q
    return ceil_div(rows, config["PREFIX_BLOCK_M"])


def _prefix_splits(tensors, spec):
    """The most splits of the prefix."""
    workload, config = spec.workload, spec.config
    tiles = workload.heads_kv * _prefix_tiles(workload, config)
    most = ceil_div(most_keys(tensors, workload), config["MIN_SPLIT_KEYS"])
    return max(1, min(config["PREFIX_TILES_PER_SM"] * spec.sms // tiles, most))


def scratch(tensors, spec):
    """Shapes and dtypes of what the first kernel finds, of the outputs of splits and of their
    logsumexps, as the kernels lay them out. Each call has its own."""
    import torch  # importing it takes seconds, and compiling does not need it

    workload = spec.workload
    splits = splits_with_memory(spec.config, most_keys(tensors, workload))
    splits += _prefix_splits(tensors, spec)
    rows = workload.batch * workload.heads * workload.seqlen_q
    return (
        ((2 + workload.batch,), torch.int32),
        ((rows, splits, workload.head_dim_v), torch.float32),
        ((rows, splits), torch.float32),
    )


def _rule(tensors, spec):
    """The numbers that splits depend on, beside the lengths and the prefix."""
    config = spec.config
    return _prefix_splits(tensors, spec), config["MIN_SPLIT_KEYS"], config["MAX_SPLITS"]


def preprocess_arguments(tensors, spec):
    """The grid and the first kernel's arguments, for the tensors of `arguments`."""
    workload, found = spec.workload, tensors[-3]
    hidden = 0 if sees_all_keys(workload) else workload.seqlen_q - 1
    return (workload.batch, 1, 1), [
        tensors[5], tensors[6], found, table_row(tensors, workload), workload.batch,
        most_keys(tensors, workload), hidden,
        *_constants_of_counting(workload, spec.config).values(),
    ]  # fmt: skip


def arguments(tensors, spec):
    """The grid and the second kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse, seqlens, block_table, sinks, found, partial, partial_lse),
    without sinks where there are none, are those of `arguments` in attention_decode_triton.py. The
    last three are of `scratch`.
    """
    q, k, v, _, _, seqlens, table, *_, found, partial, partial_lse = tensors
    workload, config = spec.workload, spec.config
    prefix_tiles = _prefix_tiles(workload, config)
    row_tiles = ceil_div(workload.group * workload.seqlen_q, _block_m(workload))
    splits = partial_lse.shape[1]
    most = workload.heads_kv * splits * max(prefix_tiles, workload.batch * row_tiles)
    grid = (min(most, spec.sms * config["CTAS_PER_SM"]), 1, 1)
    return grid, [
        q, k, v, seqlens, table, found, partial, partial_lse,
        *(step for tensor in (q, k, v) for step in tensor.stride()[:3]),
        table_row(tensors, workload), workload.batch, workload.heads_kv, workload.seqlen_q,
        most_keys(tensors, workload), prefix_tiles, row_tiles, splits, *_rule(tensors, spec),
        *score_factors(spec), *_constants(workload, config).values(),
    ]  # fmt: skip


def postprocess_arguments(tensors, spec):
    """The grid and the third kernel's arguments, for the tensors of `arguments`."""
    _, _, _, out, lse, seqlens, *_, found, partial, partial_lse = tensors
    workload, config = spec.workload, spec.config
    rows = workload.batch * workload.heads * workload.seqlen_q
    return (rows, 1, 1), [
        out, lse, seqlens, table_and_sinks(tensors, workload)[1], found, partial, partial_lse,
        *out.stride()[:3], workload.batch, workload.heads, workload.seqlen_q,
        most_keys(tensors, workload), partial_lse.shape[1], *_rule(tensors, spec),
        *_constants_of_combining(workload, config).values(),
    ]  # fmt: skip
