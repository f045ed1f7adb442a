"""FlashAttention forward in Triton for Huawei's Ascend NPUs: a core is a cube and two vector cores.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

Algorithm: Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning",
arXiv:2307.08691, algorithm 1. There is one program for each core, and it walks over the tiles of
BLOCK_M query rows of one head, every so many as there are programs; past a tile it streams K and V
in blocks of BLOCK_N keys.

The compiler splits a program in two: the cube multiplies q @ k^T and p @ v, whose operands go from
memory to L1 and whose results lie in L0C; the two vector cores take half of the rows each, and hold
scores, row maximum, row sum and output in their UB. What they hand each other goes through a
workspace in memory. So Q, K and V never are in a UB: scores and output in fp32 are what fills it.

Causal means bottom-right aligned: query i sees keys j <= i + seqlen_k - seqlen_q. A mask about
doubles the UB that compiler 1.1.0 takes for a loop (128 x 128, head dimension 64: 297,536 B instead
of 156,800), so causal tiles that fit are smaller.

What each parameter trades:
    BLOCK_M, BLOCK_N      reuse of K and V, and steps of a loop, against UB, L1 and L0C
    MULTIBUFFER           1: blocks of K and V arrive while others are worked on, for twice the L1
    SPLIT_MASK_LOOP       1: causal blocks that no mask touches run in a loop of their own, without
                          a mask; the two loops do not share L1 and L0C
    TILE_MIX_VECTOR_LOOP  parts in which the vector cores do their work on scores; more take less UB
    WORKSPACE_BUFFERS     blocks of scores and probabilities under way between cube and vectors,
                          against memory
    L0C_BUFFERS           2: a product begins while the one before it leaves L0C, for twice the L0C
    UNIT_FLAG             1: the parts of a product leave L0C as they are done
The compiler 1.1.0 heeds neither TILE_MIX_VECTOR_LOOP nor WORKSPACE_BUFFERS, and without MULTIBUFFER
1.2.0 does not either.
"""

from __future__ import annotations

import triton
import triton.language as tl

MASKED = tl.constexpr(-1.0e30)
"""Stands for minus infinity, whose difference with itself is no number."""


@triton.jit
def _rows(block, TAIL: tl.constexpr):
    """The rows of a block; zeros for those beyond the end, where there may be some."""
    if TAIL:
        return tl.load(block, boundary_check=(0,), padding_option="zero")
    else:
        return tl.load(block)


@triton.jit
def _step(
    q, k_block, v_block, top, total, acc, scale, first, last, start,
    DIAGONAL: tl.constexpr, END: tl.constexpr, TAIL_N: tl.constexpr,
):  # fmt: skip
    """One block of keys: (row maximum, row sum, output), each brought up to date."""
    s = tl.dot(q, tl.trans(_rows(k_block, TAIL_N))) * scale  # (BLOCK_M, BLOCK_N)
    # Compared in fp32, for the vector cores compare no integers; exact up to 2 ** 24 keys.
    if DIAGONAL:
        rows = (first - start + tl.arange(0, s.shape[0])).to(tl.float32)
        columns = tl.arange(0, s.shape[1]).to(tl.float32)
        s = tl.where(rows[:, None] >= columns[None, :], s, MASKED)
    if END:
        columns = (start + tl.arange(0, s.shape[1])).to(tl.float32)
        s = tl.where((columns <= last)[None, :], s, MASKED)
    new = tl.maximum(top, tl.max(s, 1))
    p = tl.math.exp(s - new[:, None])
    alpha = tl.math.exp(top - new)
    total = total * alpha + tl.sum(p, 1)
    acc = tl.dot(p.to(q.dtype), _rows(v_block, TAIL_N), acc * alpha[:, None])
    return new, total, acc


@triton.jit
def attention_fwd(
    Q, K, V, Out, Lse,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row,
    o_batch, o_head, o_row,
    heads, group, seqlen_q, seqlen_k, num_tiles, tiles_per_head, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, CAUSAL: tl.constexpr,
    SPLIT_MASK_LOOP: tl.constexpr, TAIL_M: tl.constexpr, TAIL_N: tl.constexpr,
):  # fmt: skip
    """The tiles of one core; strides are in elements.

    TAIL_M, TAIL_N: whether the last block of a head has fewer rows than the others.
    """
    last = (seqlen_k - 1).to(tl.float32)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        head = tile // tiles_per_head % heads
        batch = tile // tiles_per_head // heads
        own = tile % tiles_per_head * BLOCK_M
        q_block = tl.make_block_ptr(
            Q + batch * q_batch + head * q_head,
            (seqlen_q, HEAD_DIM), (q_row, 1), (own, 0), (BLOCK_M, HEAD_DIM), (1, 0),
        )  # fmt: skip
        k_block = tl.make_block_ptr(
            K + batch * k_batch + head // group * k_head,
            (seqlen_k, HEAD_DIM), (k_row, 1), (0, 0), (BLOCK_N, HEAD_DIM), (1, 0),
        )  # fmt: skip
        v_block = tl.make_block_ptr(
            V + batch * v_batch + head // group * v_head,
            (seqlen_k, HEAD_DIM), (v_row, 1), (0, 0), (BLOCK_N, HEAD_DIM), (1, 0),
        )  # fmt: skip
        o_block = tl.make_block_ptr(
            Out + batch * o_batch + head * o_head,
            (seqlen_q, HEAD_DIM), (o_row, 1), (own, 0), (BLOCK_M, HEAD_DIM), (1, 0),
        )  # fmt: skip
        q = _rows(q_block, TAIL_M)
        top = tl.full([BLOCK_M], MASKED, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
        first = own + seqlen_k - seqlen_q  # the last key that the first row sees
        masked, end = seqlen_k, seqlen_k
        if CAUSAL:
            masked = (first + 1) // BLOCK_N * BLOCK_N
            end = tl.minimum(first + BLOCK_M, seqlen_k) if TAIL_M else first + BLOCK_M
        elif TAIL_N:
            masked = seqlen_k // BLOCK_N * BLOCK_N
        if SPLIT_MASK_LOOP:
            for start in range(0, masked, BLOCK_N):
                top, total, acc = _step(
                    q, k_block, v_block, top, total, acc, scale, first, last, start,
                    DIAGONAL=False, END=False, TAIL_N=False,
                )  # fmt: skip
                k_block = tl.advance(k_block, (BLOCK_N, 0))
                v_block = tl.advance(v_block, (BLOCK_N, 0))
        else:
            masked = 0
        # No valid row sees a key beyond the end where a row sees none beyond its own.
        for start in range(masked, end, BLOCK_N):
            top, total, acc = _step(
                q, k_block, v_block, top, total, acc, scale, first, last, start,
                DIAGONAL=CAUSAL, END=TAIL_N and not CAUSAL, TAIL_N=TAIL_N,
            )  # fmt: skip
            k_block = tl.advance(k_block, (BLOCK_N, 0))
            v_block = tl.advance(v_block, (BLOCK_N, 0))
        out = (acc / total[:, None]).to(q.dtype)
        rows = own + tl.arange(0, BLOCK_M)
        lse = Lse + (batch * heads + head) * seqlen_q + rows
        if TAIL_M:
            tl.store(o_block, out, boundary_check=(0,))
            tl.store(lse, top + tl.math.log(total), mask=rows < seqlen_q)
        else:
            tl.store(o_block, out)
            tl.store(lse, top + tl.math.log(total))


# ---------------------------------------------------------------------------------------- host side


_L0C_LIMIT = {1: "no-l0c", 2: "no-limit"}


def _constants(workload, config):
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
    """The kernel's name, types and constants, and flags of the compiler."""
    pointer = {"fp16": "*fp16", "bf16": "*bf16"}[workload.dtype]
    constants = _constants(workload, config)
    names = [name for name in attention_fwd.arg_names if name not in constants]
    signature = dict.fromkeys(names, "i32") | dict.fromkeys(("Q", "K", "V", "Out"), pointer)
    signature |= {"Lse": "*fp32", "scale": "fp32"}
    flags = {
        "enable-auto-multi-buffer": bool(config["MULTIBUFFER"]),
        "tile-mix-vector-loop": config["TILE_MIX_VECTOR_LOOP"],
        "set-workspace-multibuffer": config["WORKSPACE_BUFFERS"],
        "limit-auto-multi-buffer-of-local-buffer": _L0C_LIMIT[config["L0C_BUFFERS"]],
        "enable-hivm-unit-flag-sync": bool(config["UNIT_FLAG"]),
    }
    return {
        "function": attention_fwd.__name__,
        "signature": signature,
        "constants": constants,
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
    """Whether the aligned variant may read them: there is one variant."""
    return True


def arguments(tensors, spec):
    """The grid's sizes but for the cores, and the kernel's arguments in its signature's order.

    `tensors` = (q, k, v, out, lse), (batch, heads | heads_kv, seqlen, head_dim) with contiguous
    rows; lse (batch, heads, seqlen_q), fp32, contiguous. The grid is at most one program a tile: a
    launcher starts as many as there are cores.
    """
    q, k, v, out, lse = tensors
    workload, config = spec.workload, spec.config
    tiles_per_head = -(-workload.seqlen_q // config["BLOCK_M"])
    num_tiles = tiles_per_head * workload.batch * workload.heads
    strides = [step for tensor in (q, k, v, out) for step in tensor.stride()[:3]]
    sizes = [workload.heads, workload.group, workload.seqlen_q, workload.seqlen_k]
    return (num_tiles, 1, 1), [
        q, k, v, out, lse, *strides, *sizes, num_tiles, tiles_per_head, spec.scale,
        *_constants(workload, config).values(),
    ]  # fmt: skip
