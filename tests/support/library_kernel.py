"""A kernel that calls a library which is there on every machine: PyTorch's attention on the CPU."""

from __future__ import annotations

from tests.support.own_kernels import OwnKernels
from tunefa.spec.kernel import Kernel

SOURCE = """
UNREAD = ("dlse",)
LIBRARY = "PyTorch's attention on the CPU"


def version():
    import torch

    return f"torch {torch.__version__}"


def is_aligned(tensors):
    return True


def run(tensors, spec):
    import torch

    q, k, v, out, lse, dout, *_ = tensors
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
        dout, q, k, v, out, lse, 0.0, spec.workload.causal, scale=spec.scale
    )
"""
FORWARD = (
    SOURCE[: SOURCE.index("    q, k, v, out")].replace('UNREAD = ("dlse",)', "")
    + """
    q, k, v = tensors[:3]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        q, k, v, 0.0, spec.workload.causal, scale=spec.scale
    )
"""
)
DECODE = (
    SOURCE[: SOURCE.index("    q, k, v, out")].replace('UNREAD = ("dlse",)', "")
    + """
    q, k, v, _, _, lengths = tensors
    found = []
    for number, keys in enumerate(lengths.clamp(0, k.shape[2]).tolist()):
        mine = [x[number, :, :keys].double().repeat_interleave(2, 0) for x in (k, v)]
        scores = q[number].double() @ mine[0].mT * spec.scale
        found.append((scores.softmax(-1) @ mine[1], scores.logsumexp(-1)))
    out, lse = (torch.stack(each) for each in zip(*found, strict=True))
    return out.to(q.dtype), lse.float()
"""
)
DECODE_SPACE = """\
schema: 2
kernel: NAME
op: decode
language: library
parameters: {}
serves:
  its bits depend on the batch: batchvariant
  it needs one query and two query heads for each KV head: seqlen_q == 1 and heads == 2 * heads_kv
  it needs a contiguous cache: page_size == None
unaligned: its cache is not aligned
defaults:
  - config: {}
"""
SPACE = """\
schema: 2
kernel: NAME
op: bwd
language: library
priority: 5
priority_on: {sm90: 1}
parameters: {}
serves:
  it needs a KV head for each query head: heads == heads_kv
  it needs as many keys as queries: seqlen_q == seqlen_k
  it has no fixed order: not deterministic
  it has dense tensors alone: not varlen
defaults:
  - config: {}
"""
ORDER = "  it has no fixed order: not deterministic\n"


def add(own_kernels: OwnKernels, name: str, source: str = SOURCE) -> Kernel:
    """A kernel of that name among a test's own."""
    return own_kernels.add(name, source, SPACE)


def add_forward(own_kernels: OwnKernels, name: str) -> Kernel:
    """A kernel of that name for the forward pass."""
    return own_kernels.add(name, FORWARD, SPACE.replace("op: bwd", "op: fwd").replace(ORDER, ""))


def add_decode(own_kernels: OwnKernels, name: str) -> Kernel:
    """A kernel of that name for attention over a cache."""
    return own_kernels.add(name, DECODE, DECODE_SPACE)
