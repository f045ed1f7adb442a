"""Multi-head latent attention of few queries over a cache in Triton, for sm80 and newer.

    out = softmax(scale * q @ kv^T) @ kv[:, :head_dim_v],     lse = log(sum(exp(scale * q @ kv^T)))

This is the absorbed form (DeepSeek-V2, arXiv:2405.04434, section 2.1.2): all query heads share one
row of the cache for each key, its latent and its rotated part beside it, and the value is the
latent. The algorithm, the splits, the cache and the masks are those of attention_decode_triton.py,
which describes them. What differs:

* a block of the cache is loaded once, and both products read it: the first one all of it, the
  second one its first head_dim_v columns;
* there are many query rows, 16 to 128 heads of each query, and their output has 512 columns. So a
  tile has 16 to 64 rows, and its output needs most registers of 8 warps;
* tiles of the same keys run at the same time, so that the L2 cache holds them for the others.

SWAP_AB computes both products transposed, keys and columns as the rows of the tensor cores' tiles:
WGMMA has 64 of them, which 16 heads would not fill.

What each parameter trades:
    BLOCK_M           query rows of a tile: keys are read fewer times against registers
    BLOCK_N           keys per step: longer copies against shared memory
    SWAP_AB           1: both products are transposed, for few heads
    num_warps         warps that copy and compute one tile
    num_stages        blocks of the cache in flight against shared memory
    CTAS_PER_SM       CTAs that run at the same time: more bytes in flight against shared memory
    MIN_SPLIT_KEYS    keys of a split: more CTAs for short sequences against less to combine
    MAX_SPLITS        splits of a sequence: the same for long ones
    DEPENDENT_LAUNCH  1: the second kernel starts while the first one runs (sm90 on)
"""

from __future__ import annotations

from tunefa.kernels.attention_decode_triton import is_aligned as is_aligned
from tunefa.kernels.attention_decode_triton import postprocess as postprocess_of_splits
from tunefa.kernels.attention_decode_triton import postprocess_arguments as postprocess_arguments
from tunefa.kernels.attention_decode_triton import scratch as scratch
from tunefa.kernels.decode.tensors import most_keys, score_factors, sees_all_keys, table_row

from tunefa.spec.rounding import ceil_div, next_pow2

_COMBINING_WARPS = 8
"""Warps of the second kernel, for rows of 512 columns."""


def _constants(workload, config):
    """Everything the compiler of the first kernel sees as a constant."""
    rope = workload.head_dim - workload.head_dim_v
    return {
        "LATENT": workload.head_dim_v,
        "ROPE": rope,
        "PAD_LATENT": max(16, next_pow2(workload.head_dim_v)),
        "PAD_ROPE": max(16, next_pow2(rope)),
        "GROUP": workload.group,
        "CAUSAL": not sees_all_keys(workload),
        "PAGE_SIZE": workload.page_size or 0,
        **{name: config[name] for name in ("BLOCK_M", "BLOCK_N", "SWAP_AB", "DEPENDENT_LAUNCH")},
    }


def device_function():
    """Returns the first kernel, which imports Triton."""
    from tunefa.kernels.triton.attention_decode_mla import attention_decode_mla

    return attention_decode_mla


def variant(workload, config, aligned=True):
    """What the Triton compiler needs for one config, with no device present: a plain dict.

    `aligned`: whether all pointers and strides are multiples of 16, as in contiguous tensors. The
    compiled kernel depends on no batch and no number of keys.
    """
    constants, kind = _constants(workload, config), workload.dtype
    axes = {"q": ("batch", "head", "row"), "kv": ("page", "head", "slot")}
    wide = ("batch", "page")  # these strides pass 2^31 elements
    strides = {
        f"{name}_{axis}": "i64" if axis in wide else "i32"
        for name, of in {**axes, "o": axes["q"]}.items()
        for axis in of
    }
    sizes = ("table_row", "batch", "heads_kv", "seqlen_q", "most_keys", "row_tiles", "splits_kept",
             "min_split_keys", "max_splits")  # fmt: skip
    signature = {
        **dict.fromkeys(("q_ptr", "kv_ptr", "out_ptr"), f"*{kind}"),
        "lse_ptr": "*fp32",
        **dict.fromkeys(("seqlens_ptr", "table_ptr"), "*i32"),
        **dict.fromkeys(("partial_ptr", "partial_lse_ptr"), "*fp32"),
        **strides,
        **dict.fromkeys(sizes, "i32"),
        "scale_log2": "fp32",
        **dict.fromkeys(constants, "constexpr"),
    }
    read = ["q_ptr", "kv_ptr", "out_ptr", *strides]
    return {
        "function": device_function,
        "signature": signature,
        "constants": constants,
        "aligned": [*(read if aligned else []), "partial_ptr", "partial_lse_ptr"],
        "options": {"num_warps": config["num_warps"], "num_stages": config["num_stages"]},
    }


def postprocess(workload, config):
    """The variant of the kernel that combines the splits of a row."""
    made = postprocess_of_splits(workload, config)
    return {**made, "options": {**made["options"], "num_warps": _COMBINING_WARPS}}


def arguments(tensors, spec):
    """The grid and the first kernel's arguments, in the order of its signature.

    `tensors` are those of `arguments` in attention_decode_triton.py; v begins where k does, and has
    its strides.
    """
    q, kv, _, out, lse, seqlens, *_, partial, partial_lse = tensors
    workload, config = spec.workload, spec.config
    table = tensors[6] if workload.page_size else seqlens
    row_tiles = ceil_div(workload.group * workload.seqlen_q, config["BLOCK_M"])
    kept = partial_lse.shape[1]
    items = workload.batch * workload.heads_kv * row_tiles * kept
    grid = (min(items, spec.sms * config["CTAS_PER_SM"]), 1, 1)
    return grid, [
        q, kv, out, lse, seqlens, table, partial, partial_lse,
        *(step for each in (q, kv, out) for step in each.stride()[:3]),
        table_row(tensors, workload), workload.batch, workload.heads_kv, workload.seqlen_q,
        most_keys(tensors, workload), row_tiles, kept, config["MIN_SPLIT_KEYS"],
        config["MAX_SPLITS"], score_factors(spec)[0], *_constants(workload, config).values(),
    ]  # fmt: skip
