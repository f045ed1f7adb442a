"""FlashAttention forward in Triton for Huawei's Ascend NPUs: a core is a cube and two vector cores.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

Algorithm: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
arXiv:2307.08691, algorithm 1. One program runs on each core. A tile is BLOCK_M query rows of one
head; program i computes the tiles i, i + programs, i + 2 * programs and so on, and goes through the
keys of each tile in blocks of BLOCK_N.

The compiler splits a program in two: the cube multiplies q @ k^T and p @ v, whose operands go from
memory to L1 and whose results lie in L0C; the two vector cores take half of the rows each, and hold
scores, row maximum, row sum and output in their UB. They exchange data through a workspace in
memory. So Q, K and V are never in a UB, which holds scores and output in fp32.

Causal means bottom-right aligned: query i sees keys j <= i + seqlen_k - seqlen_q. A mask about
doubles the UB that compiler 1.1.0 takes for a loop (128 x 128, head dimension 64: 297,536 B instead
of 156,800), so causal tiles have to be smaller.

This file is the host side. The device code is ascend/attention_forward.py, which imports Triton.

What each parameter trades:
    BLOCK_M, BLOCK_N      reuse of K and V, and steps of a loop, against UB, L1 and L0C
    MULTIBUFFER           1: blocks of K and V arrive while others are worked on, for twice the L1
    SPLIT_MASK_LOOP       1: causal blocks that no mask touches run in a loop of their own, without
                          a mask; the two loops do not share L1 and L0C
    TILE_MIX_VECTOR_LOOP  parts in which the vector cores work on scores; more parts take less UB
    WORKSPACE_BUFFERS     blocks of scores and probabilities in flight between cube and vectors,
                          against memory
    L0C_BUFFERS           2: a product begins while the one before it leaves L0C, for twice the L0C
    UNIT_FLAG             1: each part of a product leaves L0C as soon as it is finished
Compiler 1.1.0 ignores TILE_MIX_VECTOR_LOOP and WORKSPACE_BUFFERS, and so does 1.2.0 without
MULTIBUFFER.
"""

from __future__ import annotations

from tunefa.spec.rounding import ceil_div

_L0C_LIMIT = {1: "no-l0c", 2: "no-limit"}
_STRIDES = tuple(f"{tensor}_{axis}" for tensor in "qkvo" for axis in ("batch", "head", "row"))
_SIZES = ("heads", "group", "seqlen_q", "seqlen_k", "num_tiles", "tiles_per_head")


def device_function():
    """Returns the kernel as triton-ascend launches it, which imports Triton."""
    from tunefa.kernels.ascend.attention_forward import attention_fwd

    return attention_fwd


def _constants(workload, config):
    """Everything the compiler sees as a constant: the head size, the mask and the tile."""
    return {
        "BLOCK_M": config["BLOCK_M"],
        "BLOCK_N": config["BLOCK_N"],
        "HEAD_DIM": workload.head_dim,
        "CAUSAL": workload.causal,
        "SPLIT_MASK_LOOP": config["SPLIT_MASK_LOOP"],
        "TAIL_M": workload.seqlen_q % config["BLOCK_M"] != 0,
        "TAIL_N": workload.seqlen_k % config["BLOCK_N"] != 0,
    }


def variant(workload, config, aligned=True):
    """The kernel's file, name, types and constants, and flags of the compiler."""
    pointer = {"fp16": "*fp16", "bf16": "*bf16"}[workload.dtype]
    signature = dict.fromkeys(("Q", "K", "V", "Out"), pointer) | {"Lse": "*fp32"}
    signature |= dict.fromkeys((*_STRIDES, *_SIZES), "i32") | {"scale": "fp32"}
    flags = {
        "enable-auto-multi-buffer": bool(config["MULTIBUFFER"]),
        "tile-mix-vector-loop": config["TILE_MIX_VECTOR_LOOP"],
        "set-workspace-multibuffer": config["WORKSPACE_BUFFERS"],
        "limit-auto-multi-buffer-of-local-buffer": _L0C_LIMIT[config["L0C_BUFFERS"]],
        "enable-hivm-unit-flag-sync": bool(config["UNIT_FLAG"]),
    }
    return {
        "source": "ascend/attention_forward.py",
        "function": "attention_fwd",
        "signature": signature,
        "constants": _constants(workload, config),
        "flags": flags,
    }


def triton_config(config):
    """(parameters, options) of a `triton.Config` of triton-ascend."""
    parameters = {name: config[name] for name in ("BLOCK_M", "BLOCK_N", "SPLIT_MASK_LOOP")}
    return parameters, {
        "multibuffer": bool(config["MULTIBUFFER"]),
        "tile_mix_vector_loop": config["TILE_MIX_VECTOR_LOOP"],
        "set_workspace_multibuffer": config["WORKSPACE_BUFFERS"],
        "limit_auto_multi_buffer_of_local_buffer": _L0C_LIMIT[config["L0C_BUFFERS"]],
        "unit_flag": bool(config["UNIT_FLAG"]),
    }


def is_aligned(tensors):
    """Whether the aligned variant may read these tensors: the only variant reads any."""
    return True


def arguments(tensors, spec):
    """The number of tiles as a grid, and the kernel's arguments in the order of its signature.

    `tensors` = (q, k, v, out, lse), (batch, heads | heads_kv, seqlen, head_dim) with contiguous
    rows; lse (batch, heads, seqlen_q), fp32, contiguous. A launcher starts one program for each
    core, and no more than there are tiles.
    """
    q, k, v, out, lse = tensors
    workload, config = spec.workload, spec.config
    tiles_per_head = ceil_div(workload.seqlen_q, config["BLOCK_M"])
    num_tiles = tiles_per_head * workload.batch * workload.heads
    strides = [step for tensor in (q, k, v, out) for step in tensor.stride()[:3]]
    sizes = [workload.heads, workload.group, workload.seqlen_q, workload.seqlen_k]
    return (num_tiles, 1, 1), [
        q, k, v, out, lse, *strides, *sizes, num_tiles, tiles_per_head, spec.scale,
        *_constants(workload, config).values(),
    ]  # fmt: skip
