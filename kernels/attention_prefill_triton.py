"""Attention of packed queries over a cache with pages in Triton, for sm80 and newer: prefill, whole
or in chunks.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

The queries of all sequences follow one another without padding, and the keys and values of a
sequence are in pages of a cache, as in PagedAttention (Kwon et al., arXiv:2309.06180). The loop
over keys is that of FlashAttention-2 (Dao, arXiv:2307.08691, algorithm 1): one program owns a tile
of BLOCK_M query rows of one sequence and goes through its keys in blocks of BLOCK_N.

* The lengths are read on the device. As many programs run as rows and sequences of that number can
  have tiles; each finds its sequence by summing up the tiles of those before it. So a CUDA graph
  may be replayed with other lengths, pages and rows.
* A block of keys that lies in one page takes one entry of the block table. Where pages are smaller
  than a block, it takes an entry for each key. A step loads the entries of the next one, so that
  copies of K and V are in flight as many blocks before they are used as without pages.
* Blocks that no mask touches run in a loop of their own, without a comparison.

The cache is (pages, heads_kv, page_size, head_dim), of any strides with contiguous rows, and the
block table (batch, pages of the longest sequence). No key beyond a sequence's length is used, and
no entry of the table beyond its last page is read. Keys and values may be in e4m3, with a factor
for each sequence and KV head; they are multiplied in the dtype of the queries.

Causal means bottom-right aligned (FlashAttention >= 2.1): query i of m sees the keys j <= i + n - m
of n, and windows reach to both sides of this diagonal. With sinks, each head has one more logit,
which has no value (Xiao et al., arXiv:2309.17453). A row that sees nothing gives out = 0 and lse =
-inf.

This file is the host side. The device code is triton/attention_prefill.py.

What each parameter trades:
    BLOCK_M, BLOCK_N  reuse of K and V against registers and shared memory
    num_warps         rows per warp: fewer rows need fewer registers, more warps share each load
    num_stages        K and V blocks in flight against shared memory
    USE_TMA           0: every thread copies by cp.async; 1: TMA copies a block of a page (sm90 on)
    maxnreg           cap on registers per thread (0: none): occupancy against spills
    L2_SECTION_HEADS  heads whose tiles are interleaved: 1 keeps one head's K and V in the L2 cache,
                      more heads balance the causal tail better
    PACK_GQA          1: a tile holds all query heads of one KV head: K and V are read once a group
"""

from __future__ import annotations

import math

from tunefa.spec.rounding import coarse_ceil, next_pow2

LOG2_E = math.log2(math.e)


def _constants(workload, config):
    """Everything the compiler sees as a constant: the head sizes, the mask and the tile."""
    left, right = workload.band
    pad_d = max(16, next_pow2(workload.head_dim))
    return {
        "HEAD_DIM": workload.head_dim,
        "HEAD_DIM_V": workload.head_dim_v,
        "PAD_D": pad_d,
        # Narrower rows of V gave wrong sums, see attention_fwd_triton.py.
        "PAD_DV": max(min(pad_d, 64), next_pow2(workload.head_dim_v)),
        "GROUP": workload.group,
        "LEFT": left is not None,
        "RIGHT": right is not None,
        "SOFTCAP": workload.softcap,
        "SINKS": workload.sinks,
        "E4M3_CACHE": workload.e4m3cache,
        "PAGE_SIZE": workload.page_size,
        "USE_TMA": config["USE_TMA"] == 1,
        "BLOCK_M": config["BLOCK_M"],
        "BLOCK_N": config["BLOCK_N"],
        "PACK_GQA": config["PACK_GQA"],
    }


def _source_type(workload, config, width):
    """The type of K or V: a pointer, or a TMA descriptor of blocks of `width` columns."""
    kind = "fp8e4nv" if workload.e4m3cache else workload.dtype
    if config["USE_TMA"]:
        return f"tensordesc<{kind}[1, 1, {config['BLOCK_N']}, {width}]>"
    return f"*{kind}"


def device_function():
    """Returns the kernel, which imports Triton."""
    from tunefa.kernels.triton.attention_prefill import attention_prefill

    return attention_prefill


def _strides():
    """The parameters that are strides. Those of rows and pages pass 2^31 elements."""
    names = [f"{name}_{axis}" for name in "qo" for axis in ("row", "head")]
    names[2:2] = [f"{name}_{axis}" for name in "kv" for axis in ("page", "head", "slot")]
    return {each: "i64" if each.endswith(("row", "page")) else "i32" for each in names}


def variant(workload, config, aligned=True):
    """What the Triton compiler needs for one config, with no device present: a plain dict.

    `aligned`: whether all pointers and strides are multiples of 16, as in contiguous tensors of a
    head_dim that is one. The compiled kernel depends on no batch, head count or length.
    """
    constants, kind = _constants(workload, config), workload.dtype
    sizes = ("kd_sequence", "kd_head", "vd_sequence", "vd_head", "table_row", "rows", "bounds",
             "table_pages", "num_tiles", "num_heads", "section_heads", "window_left",
             "window_right")  # fmt: skip
    strides = _strides()
    signature = {
        "q_ptr": f"*{kind}",
        "k_source": _source_type(workload, config, constants["PAD_D"]),
        "v_source": _source_type(workload, config, constants["PAD_DV"]),
        "out_ptr": f"*{kind}",
        "lse_ptr": "*fp32",
        **dict.fromkeys(("cu_seqlens_ptr", "seqlens_ptr", "table_ptr"), "*i32"),
        **dict.fromkeys(("sinks_ptr", "k_descale_ptr", "v_descale_ptr"), "*fp32"),
        **strides,
        **dict.fromkeys(sizes, "i32"),
        **dict.fromkeys(("scale_log2", "tanh_scale"), "fp32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    pointers = [name for name in ("q_ptr", "k_source", "v_source", "out_ptr")
                if signature[name].startswith("*")]  # fmt: skip
    return {
        "function": device_function,
        "signature": signature,
        "constants": constants,
        "aligned": [*pointers, *strides] if aligned else [],
        "options": {
            "num_warps": config["num_warps"],
            "num_stages": config["num_stages"],
            "maxnreg": config["maxnreg"] or None,
        },
    }


def is_aligned(tensors):
    """Whether `variant(..., aligned=True)`, and with it TMA, may read these tensors.

    TMA needs 16-byte multiples (CUDA C++ Programming Guide, "Tensor Map"); multiples of 16 elements
    cover that for every dtype and let the compiler load 16 bytes at a time.
    """
    return all(
        tensor.data_ptr() % 16 == 0 and all(step % 16 == 0 for step in tensor.stride()[:-1])
        for tensor in tensors[:4]
    )


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse, seqlens_k, block_table, cu_seqlens_q, ...): q, out (rows, heads,
    head_dim | head_dim_v); k, v (pages, heads_kv, page_size, head_dim | head_dim_v), any strides
    with contiguous rows; lse (heads, rows), fp32, contiguous; seqlens_k (batch,), block_table
    (batch, most pages) and cu_seqlens_q (batch + 1,), int32. Sinks follow where there are any,
    (heads,), fp32; with e4m3cache the descales of k and v, (batch, heads_kv), fp32, of any strides.
    `scale` multiplies q @ k^T and is positive. The launch serves all numbers of rows and of
    sequences with the same `coarse_ceil`.
    """
    q, k, v, out, lse, seqlens, table, cu_seqlens, *more = tensors
    workload, config = spec.workload, spec.config
    constants = _constants(workload, config)
    sinks = more[0] if workload.sinks else lse  # the kernel does not read what is not there
    factors = more[-2:] if workload.e4m3cache else [lse, lse]
    packed = workload.group if config["PACK_GQA"] else 1
    queries = config["BLOCK_M"] // packed
    # Each sequence may have one tile that is not full.
    num_tiles = coarse_ceil(q.shape[0]) // queries + coarse_ceil(cu_seqlens.shape[0] - 1)
    num_heads = workload.heads // packed
    k_source, v_source = k, v
    if constants["USE_TMA"]:
        k_source = {"map": k, "box": (1, 1, config["BLOCK_N"], constants["PAD_D"])}
        v_source = {"map": v, "box": (1, 1, config["BLOCK_N"], constants["PAD_DV"])}
    strides = [step for tensor in (q, k, v, out) for step in tensor.stride()[:-1]]
    strides += [step for each in factors for step in each.stride()[:2]]
    left, right = (0 if side is None else side for side in workload.band)
    sizes = [num_tiles, num_heads, config["L2_SECTION_HEADS"], left, right]
    return (num_tiles * num_heads, 1, 1), [
        q, k_source, v_source, out, lse, cu_seqlens, seqlens, table, sinks, *factors, *strides,
        table.stride(0), (q, 0), (cu_seqlens, 0), (table, 1), *sizes, *_score_factors(spec),
        *constants.values(),
    ]  # fmt: skip


def _score_factors(spec):
    """Returns (scale_log2, tanh_scale): scores become powers of two, and with a soft-cap the first
    factor applies after the tanh and the second one before it."""
    if spec.workload.softcap:
        return [spec.softcap * LOG2_E, spec.scale / spec.softcap]
    return [spec.scale * LOG2_E, 0.0]
