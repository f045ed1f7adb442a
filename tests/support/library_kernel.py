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
