"""A fresh process that runs attention from a bundle on a GPU, where neither Triton nor NVRTC can be
imported; it prints one line of JSON for each call: `python -m tests.support.bundled_process FILE`.

Everything is compared with PyTorch's own attention in fp32.
"""

from __future__ import annotations

import json
import sys
from typing import Any

BLOCKED = ("triton", "cuda", "optuna")
"""The modules that cannot be imported; `cuda` has NVRTC's bindings."""
WORKLOADS = (
    "fwd_b2_h8_kv2_q512_k512_d128_bf16_causal",
    "bwd_b2_h8_kv2_q512_k512_d128_bf16_causal",
    "decode_b4_h8_kv2_q1_k1024_d128_bf16_causal_page64",
    "fwd_b1_h4_kv4_q300_k300_d64_fp32_causal",
)
"""The workloads of the bundle: kernels in CUDA C++ where there are any, and one in Triton."""
LENGTHS = (512, 513, 640, 1000, 77, 2048, 16, 1)
"""The numbers of queries and keys; the bundle was made for the first."""


def main() -> None:
    """Runs all calls."""
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(BLOCKED))
    import torch

    import tunefa

    tunefa.load(sys.argv[1], frozen=sys.argv[2:] == ["frozen"])
    torch.manual_seed(0)
    for length in LENGTHS if sys.argv[2:] != ["frozen"] else LENGTHS[:1]:
        dense(length)
    if sys.argv[2:] != ["frozen"]:
        dense(300, batch=1, heads=(4, 4), head_dim=64, dtype=torch.float32)
    for batch in (4, 3):
        decode(batch)
    loaded = [name for name in BLOCKED if sys.modules[name] is not None]
    print(json.dumps({"what": "imported", "found": loaded}))


def say(what: str, error: float, backward: bool = False) -> None:
    """Prints the largest error of a call and what computed it."""
    import tunefa

    chosen = tunefa.last_choice(backward=backward)
    assert chosen is not None
    print(json.dumps({"what": what, "error": error, "kernel": chosen.kernel, "how": chosen.how,
                      "why": chosen.why}))  # fmt: skip


def largest(out: Any, right: Any) -> float:
    """The largest error, beside 1 and the right value."""
    return float(((out.float() - right).abs() / (1 + right.abs())).max().detach())


def dense(
    length: int,
    batch: int = 2,
    heads: tuple[int, int] = (8, 2),
    head_dim: int = 128,
    dtype: Any = None,
) -> None:
    """A forward and a backward pass."""
    import torch
    import torch.nn.functional as F

    import tunefa

    dtype = dtype or torch.bfloat16
    shapes = [(batch, length, each, head_dim) for each in (heads[0], heads[1], heads[1])]
    q, k, v = given = [torch.randn(*x, device="cuda", dtype=dtype).requires_grad_() for x in shapes]
    out = tunefa.flash_attention(q, k, v, causal=True)
    grad = torch.randn_like(out)
    x, y, z = whole = [x.detach().float().transpose(1, 2).requires_grad_() for x in given]
    right = F.scaled_dot_product_attention(x, y, z, is_causal=True, enable_gqa=True)
    right = right.transpose(1, 2)
    say(f"forward {length}", largest(out, right))
    if dtype == torch.bfloat16:
        found = torch.autograd.grad(out, given, grad)
        wanted = torch.autograd.grad(right, whole, grad.float())
        # Of one key, the gradients of queries and keys are 0.
        least = 0.1 * float(grad.float().norm())
        error = max(
            float((a.float() - b.transpose(1, 2)).norm()) / max(float(b.norm()), least)
            for a, b in zip(found, wanted, strict=True)
        )
        say(f"backward {length}", error, backward=True)


def decode(batch: int) -> None:
    """Attention over a cache with pages of 64 keys, which are in order."""
    import torch
    import torch.nn.functional as F

    import tunefa

    pages, page, heads, heads_kv, head_dim = 16, 64, 8, 2, 128
    q = torch.randn(batch, 1, heads, head_dim, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(batch * pages, page, heads_kv, head_dim, device="cuda",
                        dtype=torch.bfloat16) for _ in range(2))  # fmt: skip
    table = torch.arange(batch * pages, device="cuda", dtype=torch.int32).view(batch, pages)
    lengths = torch.full((batch,), pages * page, device="cuda", dtype=torch.int32)
    out = tunefa.decode_attention(q, k, v, lengths, table)
    keys, values = (x.view(batch, pages * page, heads_kv, head_dim).transpose(1, 2).float()
                    for x in (k, v))  # fmt: skip
    right = F.scaled_dot_product_attention(q.float().transpose(1, 2), keys, values, enable_gqa=True)
    say(f"decode {batch}", largest(out, right.transpose(1, 2)))


if __name__ == "__main__":
    main()
