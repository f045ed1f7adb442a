"""Copies the keys and values of a cache with pages to memory where they follow one another.

It runs before a kernel for packed sequences, where prompts have so many queries that this costs
less than it saves (see tunefa/runtime/gathered.py). So it is no kernel of an op: it has no search
space, and its workload is that of the call over pages.

A program copies BLOCK_N keys and values of one KV head. It finds its sequence in its own number,
and the place of the sequence's keys by adding up the lengths of those before it. So the host knows
no length, and a CUDA graph may be replayed with other lengths and pages. Keys and values in e4m3
are multiplied by their factors and rounded to the dtype of the queries.

This file is the host side. The device code is triton/gather_pages.py.
"""

from __future__ import annotations

from tunefa.spec.rounding import ceil_div, coarse_ceil, next_pow2

BLOCK_N = 64
"""Keys of a program: with head_dim 128, each of 128 threads copies 8 times 16 bytes of K and V."""


def _constants(workload):
    return {
        "HEAD_DIM": workload.head_dim,
        "HEAD_DIM_V": workload.head_dim_v,
        "PAD_D": next_pow2(workload.head_dim),
        "PAD_DV": next_pow2(workload.head_dim_v),
        "PAGE_SIZE": workload.page_size,
        "E4M3_CACHE": workload.e4m3cache,
        "BLOCK_N": BLOCK_N,
    }


def device_function():
    """Returns the kernel, which imports Triton."""
    from tunefa.kernels.triton.gather_pages import gather_pages

    return gather_pages


def variant(workload, config, aligned=True):
    """What the Triton compiler needs, with no device present: a plain dict. `config` has nothing.

    `aligned`: whether the pointers and strides of the cache are multiples of 16. The compiled
    kernel depends on no batch, head count or length.
    """
    constants, kind = _constants(workload), workload.dtype
    cache = "fp8e4nv" if workload.e4m3cache else kind
    strides = [f"{name}_{axis}" for name in "kv" for axis in ("page", "slot", "head")]
    sizes = ("kd_sequence", "kd_head", "vd_sequence", "vd_head", "table_row", "batch",
             "table_pages", "most_keys", "heads_kv", "blocks")  # fmt: skip
    signature = {
        **dict.fromkeys(("k_ptr", "v_ptr"), f"*{cache}"),
        **dict.fromkeys(("seqlens_ptr", "table_ptr"), "*i32"),
        **dict.fromkeys(("k_out_ptr", "v_out_ptr"), f"*{kind}"),
        "cu_seqlens_ptr": "*i32",
        **dict.fromkeys(("k_descale_ptr", "v_descale_ptr"), "*fp32"),
        # Those of pages pass 2^31 elements.
        **{each: "i64" if each.endswith("page") else "i32" for each in strides},
        **dict.fromkeys(sizes, "i32"),
        **dict.fromkeys(constants, "constexpr"),
    }
    of_cache = ["k_ptr", "v_ptr", *strides] if aligned else []
    return {
        "function": device_function,
        "signature": signature,
        "constants": constants,
        "aligned": [*of_cache, "k_out_ptr", "v_out_ptr"],
        "options": {"num_warps": 4},
    }


def is_aligned(tensors):
    """Whether `variant(..., aligned=True)` may read the cache, the first two of `tensors`."""
    return all(
        tensor.data_ptr() % 16 == 0 and all(step % 16 == 0 for step in tensor.stride()[:-1])
        for tensor in tensors[:2]
    )


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its signature.

    `tensors` = (k, v, seqlens_k, block_table, k_out, v_out, cu_seqlens_k, ...): k, v (pages,
    page_size, heads_kv, head_dim | head_dim_v), any strides with contiguous rows; seqlens_k
    (batch,) and block_table (batch, most pages), int32; k_out, v_out (keys, heads_kv, head_dim |
    head_dim_v), contiguous and 16-byte aligned, and cu_seqlens_k (batch + 1,), int32, are written.
    With e4m3cache the descales of k and v follow, (batch, heads_kv), fp32, of any strides. Of a
    sequence `workload.seqlen_k` keys are copied at most. The launch serves all numbers of sequences
    with the same `coarse_ceil`.
    """
    k, v, seqlens, table, k_out, v_out, cu_seqlens, *factors = tensors
    workload = spec.workload
    pointers, factor_strides = factors, [step for each in factors for step in each.stride()]
    if not workload.e4m3cache:  # the kernel does not read what is not there
        pointers, factor_strides = [k_out, v_out], [0, 0, 0, 0]
    blocks = ceil_div(workload.seqlen_k, BLOCK_N)
    strides = [step for tensor in (k, v) for step in tensor.stride()[:-1]]
    return (blocks * workload.heads_kv * coarse_ceil(seqlens.shape[0]), 1, 1), [
        k, v, seqlens, table, k_out, v_out, cu_seqlens, *pointers, *strides, *factor_strides,
        table.stride(0), (seqlens, 0), (table, 1), workload.seqlen_k, workload.heads_kv, blocks,
        *_constants(workload).values(),
    ]  # fmt: skip
