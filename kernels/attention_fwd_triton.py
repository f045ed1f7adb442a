"""FlashAttention-2 forward in Triton, for every NVIDIA chip from sm80 on.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

Algorithm: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
arXiv:2307.08691, algorithm 1: one program owns BLOCK_M query rows of one head and goes through the
keys in blocks of BLOCK_N; row maximum, row sum and output stay in registers.

Three choices beyond the paper:
* exponentials are base 2 and `scale * log2(e)` enters as `exp2(s * scale - max)`, one fused
  multiply-add and one special-function operation per element;
* blocks that no mask touches run in a loop of their own, without a comparison;
* causal tiles start in the order of their keys, most first, so that the last programs are short.

Causal means bottom-right aligned (FlashAttention >= 2.1): query i sees keys j <= i + seqlen_k -
seqlen_q. A row that sees no key gives out = 0 and lse = -inf.

This file is the host side. The device code is triton/attention_forward.py, which `device_function`
imports when something is compiled, as a launch needs no compiler.

What each parameter trades:
    BLOCK_M, BLOCK_N  reuse of K and V against registers and shared memory
    num_warps         rows per warp: fewer rows need fewer registers, more warps share each load
    num_stages        K and V blocks in flight against shared memory
    USE_TMA           0: every thread copies by cp.async; 1: TMA copies a block at once (sm90 on)
    maxnreg           cap on registers per thread (0: none): occupancy against spills
    L2_SECTION_HEADS  heads whose tiles are interleaved: 1 keeps one head's K and V in the L2 cache,
                      more heads balance the causal tail better
    PACK_GQA          1: a tile holds all query heads of one KV head: K and V are read once a group
"""

from __future__ import annotations

import math

from tunefa.spec.rounding import ceil_div, next_pow2

LOG2_E = math.log2(math.e)


def _constants(workload, config):
    """Everything the compiler sees as a constant: the head sizes, the mask and the tile."""
    pad_d = max(16, next_pow2(workload.head_dim))
    # Rows of V narrower than both 128 bytes and K's rows gave wrong sums, or faults, on an H200
    # with Triton 3.6.0 wherever V was not loaded ahead (head_dim 64, head_dim_v 32, one stage).
    narrowest = min(pad_d, 32 if workload.dtype == "fp32" else 64)
    return {
        "HEAD_DIM": workload.head_dim,
        "HEAD_DIM_V": workload.head_dim_v,
        "PAD_D": pad_d,
        "PAD_DV": max(narrowest, next_pow2(workload.head_dim_v)),
        "GROUP": workload.group,
        "CAUSAL": workload.causal,
        "USE_TMA": config["USE_TMA"] == 1,
        # One tf32 product rounds its inputs to 10 bits; three restore fp32's accuracy.
        "PRECISION": "tf32x3" if workload.dtype == "fp32" else "tf32",
        "BLOCK_M": config["BLOCK_M"],
        "BLOCK_N": config["BLOCK_N"],
        "PACK_GQA": config["PACK_GQA"],
    }


def _source_type(workload, config, width):
    """The type of K or V: a pointer, or a TMA descriptor of blocks of `width` columns."""
    if config["USE_TMA"]:
        return f"tensordesc<{workload.dtype}[1, 1, {config['BLOCK_N']}, {width}]>"
    return f"*{workload.dtype}"


def device_function():
    """Returns the kernel, which imports Triton."""
    from tunefa.kernels.triton.attention_forward import attention_fwd

    return attention_fwd


def variant(workload, config, aligned=True):
    """What the Triton compiler needs for one config, with no device present: a plain dict.

    `aligned`: whether all pointers and strides are multiples of 16, as in contiguous tensors of a
    head_dim that is one. The compiled kernel depends on no batch, head count or length.
    """
    constants = _constants(workload, config)
    kind = workload.dtype
    strides = [f"{tensor}_{axis}" for tensor in "qkvo" for axis in ("batch", "head", "row")]
    sizes = ("heads", "seqlen_q", "seqlen_k", "num_tiles", "num_heads", "section_heads")
    signature = {
        "q_ptr": f"*{kind}",
        "k_source": _source_type(workload, config, constants["PAD_D"]),
        "v_source": _source_type(workload, config, constants["PAD_DV"]),
        "out_ptr": f"*{kind}",
        "lse_ptr": "*fp32",
        # A long context passes 2^31 elements.
        **{stride: "i64" if stride.endswith("batch") else "i32" for stride in strides},
        **dict.fromkeys(sizes, "i32"),
        "scale_log2": "fp32",
        **dict.fromkeys(constants, "constexpr"),
    }
    pointers = [name for name, kind in signature.items() if kind.startswith("*")]
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
        tensor.data_ptr() % 16 == 0 and all(step % 16 == 0 for step in tensor.stride()[:3])
        for tensor in tensors[:4]
    )


def arguments(tensors, spec):
    """The grid and the kernel's arguments, in the order of its signature.

    `tensors` = (q, k, v, out, lse): q, out (batch, heads, seqlen_q, head_dim | head_dim_v); k, v
    (batch, heads_kv, seqlen_k, head_dim | head_dim_v), any strides with contiguous rows; lse
    (batch, heads, seqlen_q), fp32, contiguous. `scale` multiplies q @ k^T and is positive.
    """
    q, k, v, out, lse = tensors
    workload, config = spec.workload, spec.config
    constants = _constants(workload, config)
    packed = workload.group if config["PACK_GQA"] else 1
    num_tiles = ceil_div(workload.seqlen_q * packed, config["BLOCK_M"])
    num_heads = workload.batch * workload.heads // packed
    k_source, v_source = k, v
    if constants["USE_TMA"]:
        k_source = {"map": k, "box": (1, 1, config["BLOCK_N"], constants["PAD_D"])}
        v_source = {"map": v, "box": (1, 1, config["BLOCK_N"], constants["PAD_DV"])}
    strides = [step for tensor in (q, k, v, out) for step in tensor.stride()[:3]]
    sizes = [workload.heads, workload.seqlen_q, workload.seqlen_k, num_tiles, num_heads]
    grid = (num_tiles * num_heads, 1, 1)
    return grid, [q, k_source, v_source, out, lse, *strides, *sizes, config["L2_SECTION_HEADS"],
                  spec.scale * LOG2_E, *constants.values()]  # fmt: skip
