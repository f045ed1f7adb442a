"""Attention of few queries over a cache of keys and values in Triton, for sm80 and newer.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

Decoding reads every key once for one to sixteen queries, so it is as fast as the memory if enough
CTAs read at the same time. So the keys of a sequence are split, as in Flash-Decoding (Dao et al.,
2023, pytorch.org/blog/flash-decoding): a CTA computes the output of one split, and a second kernel
combines the splits of a row by their logsumexps. One tile has all query heads of a KV head, and all
queries, so that keys and values are read once.

Splits depend on nothing but the sequence itself: those of n visible keys have

    max(MIN_SPLIT_KEYS, n / MAX_SPLITS, rounded up to BLOCK_N)

keys each. So a sequence gets the same bits whatever else is in the batch. Lengths are read on the
device: as many CTAs run as the device holds at once, and each takes every so-manieth split of all
sequences. So a CUDA graph may be replayed with other lengths, pages and rows.

The cache is contiguous, (batch, heads_kv, seqlen_k, head_dim), or has pages, (pages, heads_kv,
page_size, head_dim), of any strides, and a block table (batch, pages of the longest sequence). No
key beyond a sequence's length is read. Keys and values may be in e4m3, with a factor for each
sequence and KV head; they are multiplied in the dtype of the queries.

Causal means bottom-right aligned (FlashAttention >= 2.1): query i of m sees the keys j <= i + n - m
of n. With sinks, each head has one more logit, which has no value (Xiao et al., arXiv:2309.17453).
A row that sees nothing gives out = 0 and lse = -inf.

This file is the host side. The device code is triton/attention_decode.py.

What each parameter trades:
    BLOCK_N           keys per step: longer copies against shared memory
    num_warps         warps that copy and compute one tile
    num_stages        blocks of K and V in flight against shared memory
    CTAS_PER_SM       CTAs that run at the same time: more bytes in flight against shared memory
    MIN_SPLIT_KEYS    keys of a split: more CTAs for short sequences against less to combine
    MAX_SPLITS        splits of a sequence: the same for long ones
    DEPENDENT_LAUNCH  1: the second kernel starts while the first one runs (sm90 on)
"""

from __future__ import annotations

from tunefa.kernels.decode.tensors import (
    descales,
    most_keys,
    score_factors,
    sees_all_keys,
    table_and_sinks,
    table_row,
)

from tunefa.spec.rounding import ceil_div, next_pow2

_MOST_ROWS = 64
"""The most query rows of a tile; more are several tiles, whose keys the L2 cache holds."""
_SIZES_OF_COMBINING = (
    "heads", "seqlen_q", "most_keys", "splits_kept", "window_left", "min_split_keys", "max_splits",
)  # fmt: skip
"""The sizes that the second kernel takes."""
_CHUNK = 32
"""Splits that the second kernel combines at once."""


def _widths(workload):
    """Columns of Q and K, and of V, with padding."""
    return [max(16, next_pow2(each)) for each in (workload.head_dim, workload.head_dim_v)]


def _block_m(workload):
    """Query rows of a tile: those of all heads of a group."""
    return min(_MOST_ROWS, max(16, next_pow2(workload.group * workload.seqlen_q)))


def _constants(workload, config):
    """Everything the compiler of the first kernel sees as a constant."""
    pad_d, pad_dv = _widths(workload)
    return {
        "HEAD_DIM": workload.head_dim,
        "HEAD_DIM_V": workload.head_dim_v,
        "PAD_D": pad_d,
        "PAD_DV": pad_dv,
        "GROUP": workload.group,
        "CAUSAL": not sees_all_keys(workload),
        "WINDOWED": workload.window_left is not None,
        "SOFTCAP": workload.softcap,
        "SINKS": workload.sinks,
        "E4M3_CACHE": workload.e4m3cache,
        "PAGE_SIZE": workload.page_size or 0,
        "BLOCK_M": _block_m(workload),
        "BLOCK_N": config["BLOCK_N"],
        "DEPENDENT_LAUNCH": config["DEPENDENT_LAUNCH"],
    }


def _constants_of_combining(workload, config):
    """Everything the compiler of the second kernel sees as a constant."""
    own = _constants(workload, config)
    names = ("HEAD_DIM_V", "PAD_DV", "GROUP", "WINDOWED", "SINKS", "BLOCK_N")
    made = {name: own[name] for name in names}
    return {**made, "CHUNK": _CHUNK, "DEPENDENT_LAUNCH": config["DEPENDENT_LAUNCH"]}


def device_function():
    """Returns the first kernel, which imports Triton."""
    from tunefa.kernels.triton.attention_decode import attention_decode

    return attention_decode


def postprocess_function():
    """Returns the second kernel, which imports Triton."""
    from tunefa.kernels.triton.attention_decode import combine_splits

    return combine_splits


def _strides(names, axes):
    """The parameters that are strides. Those of batches and pages pass 2^31 elements."""
    names = [f"{name}_{axis}" for name in names for axis in axes]
    return {each: "i64" if each.endswith(("batch", "page")) else "i32" for each in names}


def variant(workload, config, aligned=True):
    """What the Triton compiler needs for one config, with no device present: a plain dict.

    `aligned`: whether all pointers and strides are multiples of 16, as in contiguous tensors of a
    head_dim that is one. The compiled kernel depends on no batch, head count or number of keys.
    """
    constants, kind = _constants(workload, config), workload.dtype
    strides = {
        **_strides("q", ("batch", "head", "row")),
        **_strides("kv", ("page", "head", "slot")),
        **_strides("o", ("batch", "head", "row")),
    }
    sizes = ("table_row", "batch", "heads_kv", "seqlen_q", "most_keys", "row_tiles", "splits_kept",
             "window_left", "min_split_keys", "max_splits")  # fmt: skip
    signature = {
        "q_ptr": f"*{kind}",
        **dict.fromkeys(("k_ptr", "v_ptr"), "*fp8e4nv" if workload.e4m3cache else f"*{kind}"),
        "out_ptr": f"*{kind}",
        "lse_ptr": "*fp32",
        **dict.fromkeys(("seqlens_ptr", "table_ptr"), "*i32"),
        **dict.fromkeys(("sinks_ptr", "k_descale_ptr", "v_descale_ptr"), "*fp32"),
        **dict.fromkeys(("partial_ptr", "partial_lse_ptr"), "*fp32"),
        **strides,
        **_strides(("kd", "vd"), ("sequence", "head")),
        **dict.fromkeys(sizes, "i32"),
        **dict.fromkeys(("scale_log2", "tanh_scale"), "fp32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    read = ["q_ptr", "k_ptr", "v_ptr", "out_ptr", *strides]
    return {
        "function": device_function,
        "signature": signature,
        "constants": constants,
        "aligned": [*(read if aligned else []), "partial_ptr", "partial_lse_ptr"],
        "options": {"num_warps": config["num_warps"], "num_stages": config["num_stages"]},
    }


def postprocess(workload, config):
    """The variant of the kernel that combines the splits of a row."""
    constants = _constants_of_combining(workload, config)
    strides = _strides("o", ("batch", "head", "row"))
    signature = {
        "out_ptr": f"*{workload.dtype}",
        "lse_ptr": "*fp32",
        "seqlens_ptr": "*i32",
        **dict.fromkeys(("sinks_ptr", "partial_ptr", "partial_lse_ptr"), "*fp32"),
        **strides,
        **dict.fromkeys(_SIZES_OF_COMBINING, "i32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    options = {"num_warps": 2}
    if config["DEPENDENT_LAUNCH"]:
        options["launch_pdl"] = True
    return {
        "function": postprocess_function,
        "signature": signature,
        "constants": constants,
        "aligned": ["partial_ptr", "partial_lse_ptr"],
        "options": options,
    }


def is_aligned(tensors):
    """Whether `variant(..., aligned=True)` may read these tensors 16 bytes at a time."""
    return all(
        tensor.data_ptr() % 16 == 0 and all(step % 16 == 0 for step in tensor.stride()[:3])
        for tensor in tensors[:4]
    )


def splits_with_memory(config, keys):
    """The most splits that a sequence of at most `keys` keys has."""
    return max(1, min(config["MAX_SPLITS"], ceil_div(keys, config["MIN_SPLIT_KEYS"])))


def scratch(tensors, spec):
    """Shapes and dtypes of the outputs of splits and of their logsumexps, as the kernels lay them
    out. Each call has its own."""
    import torch  # importing it takes seconds, and compiling does not need it

    workload = spec.workload
    splits = splits_with_memory(spec.config, most_keys(tensors, workload))
    rows = workload.batch * workload.heads * workload.seqlen_q
    return ((rows, splits, workload.head_dim_v), torch.float32), ((rows, splits), torch.float32)


def _rule(spec):
    """The numbers that splits depend on, beside the length of a sequence."""
    config = spec.config
    return spec.workload.window_left or 0, config["MIN_SPLIT_KEYS"], config["MAX_SPLITS"]


def arguments(tensors, spec):
    """The grid and the first kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse, seqlens, block_table, sinks, partial, partial_lse), without
    block_table where the cache is contiguous, and without sinks where there are none: q, out
    (batch, heads, seqlen_q, head_dim | head_dim_v); k, v (batch, heads_kv, seqlen_k, head_dim |
    head_dim_v) or (pages, heads_kv, page_size, ...), any strides with contiguous rows; lse (batch,
    heads, seqlen_q), fp32, contiguous; seqlens (batch,), int32; block_table (batch, most pages),
    int32; sinks (heads,), fp32. With e4m3cache the descales of k and v follow, (batch, heads_kv),
    fp32, of any strides. The last two are of `scratch`. `scale` multiplies q @ k^T and is positive.
    """
    q, k, v, out, lse, seqlens, *_, partial, partial_lse = tensors
    workload, config = spec.workload, spec.config
    table, sinks = table_and_sinks(tensors, workload)
    factors = descales(tensors, workload)
    row_tiles = ceil_div(workload.group * workload.seqlen_q, _block_m(workload))
    splits = partial_lse.shape[1]
    strides = [step for tensor in (q, k, v, out) for step in tensor.stride()[:3]]
    sizes = [
        workload.batch,
        workload.heads_kv,
        workload.seqlen_q,
        most_keys(tensors, workload),
        row_tiles,
        splits,
    ]
    most = workload.batch * workload.heads_kv * row_tiles * splits
    grid = (min(most, spec.sms * config["CTAS_PER_SM"]), 1, 1)
    return grid, [
        q, k, v, out, lse, seqlens, table, sinks, *factors, partial, partial_lse, *strides,
        *(step for each in factors for step in each.stride()[:2]),
        table_row(tensors, workload), *sizes, *_rule(spec), *score_factors(spec),
        *_constants(workload, config).values(),
    ]  # fmt: skip


def postprocess_arguments(tensors, spec):
    """The grid and the second kernel's arguments, for the tensors of `arguments`."""
    _, _, _, out, lse, seqlens, *_, partial, partial_lse = tensors
    workload, config = spec.workload, spec.config
    sinks = table_and_sinks(tensors, workload)[1]
    sizes = [workload.heads, workload.seqlen_q, most_keys(tensors, workload), partial_lse.shape[1]]
    sizes += _rule(spec)
    rows = workload.batch * workload.heads * workload.seqlen_q
    return (rows, 1, 1), [
        out, lse, seqlens, sinks, partial, partial_lse, *out.stride()[:3], *sizes,
        *_constants_of_combining(workload, config).values(),
    ]  # fmt: skip
