"""Attention, full: a kernel for tests of the compiler, in which a program is a core."""

from typing import Any

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def attention(  # type: ignore[no-untyped-def]
    Q, K, V, Out, scale, seqlen, tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    blocks = seqlen // BLOCK_M
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        base, first = tile // blocks * seqlen * HEAD_DIM, tile % blocks * BLOCK_M
        q_block = tl.make_block_ptr(
            Q + base, (seqlen, HEAD_DIM), (HEAD_DIM, 1), (first, 0), (BLOCK_M, HEAD_DIM), (1, 0)
        )
        k_block = tl.make_block_ptr(
            K + base, (seqlen, HEAD_DIM), (HEAD_DIM, 1), (0, 0), (BLOCK_N, HEAD_DIM), (1, 0)
        )
        v_block = tl.make_block_ptr(
            V + base, (seqlen, HEAD_DIM), (HEAD_DIM, 1), (0, 0), (BLOCK_N, HEAD_DIM), (1, 0)
        )
        o_block = tl.make_block_ptr(
            Out + base, (seqlen, HEAD_DIM), (HEAD_DIM, 1), (first, 0), (BLOCK_M, HEAD_DIM), (1, 0)
        )
        q = tl.load(q_block)
        top = tl.full([BLOCK_M], -float("inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
        for _ in range(0, seqlen, BLOCK_N):
            s = tl.dot(q, tl.trans(tl.load(k_block))) * scale
            new = tl.maximum(top, tl.max(s, 1))
            p = tl.math.exp(s - new[:, None])
            alpha = tl.math.exp(top - new)
            total = total * alpha + tl.sum(p, 1)
            acc = tl.dot(p.to(q.dtype), tl.load(v_block), acc * alpha[:, None])
            top = new
            k_block = tl.advance(k_block, (BLOCK_N, 0))
            v_block = tl.advance(v_block, (BLOCK_N, 0))
        tl.store(o_block, (acc / total[:, None]).to(q.dtype))


def variant(workload: Any, config: Any, aligned: bool = True) -> dict[str, Any]:
    """The variant that is compiled."""
    pointer = {"fp16": "*fp16", "bf16": "*bf16"}[workload.dtype]
    return {
        "source": "ascend_attention.py",
        "function": "attention",
        "signature": dict.fromkeys(("Q", "K", "V", "Out"), pointer)
        | {"scale": "fp32", "seqlen": "i32", "tiles": "i32"},
        "constants": {
            "BLOCK_M": config["BLOCK_M"],
            "BLOCK_N": config["BLOCK_N"],
            "HEAD_DIM": workload.head_dim,
        },
        "flags": {"enable-auto-multi-buffer": config["MULTIBUFFER"]},
    }
