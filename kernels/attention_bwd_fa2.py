"""The gradients of attention by the FlashAttention-2 inside PyTorch.

Algorithm: FlashAttention-2's backward pass (arXiv:2307.08691, algorithm 2) in CUDA C++ for sm80,
which newer chips run too. A CTA owns a tile of keys, and adds its part of dQ to a sum in fp32 in
device memory. tunefa calls PyTorch's operator aten::_flash_attention_backward and has no part in
the kernel. So there are no parameters, and there is nothing to tune.

It computes the gradients on chips before Hopper where no record says what is faster. On Hopper
cuDNN, and tunefa's own kernels, come before it.

It has windows and packed sequences, but no soft-cap, one head_dim for Q, K and V, and no gradient
of the logsumexp. A deterministic call keeps the parts of dQ apart and adds them in a fixed order.
"""

from __future__ import annotations

from tunefa.kernels.library.flash_attention_2 import LIBRARY, backward, is_aligned, version

__all__ = ["LIBRARY", "UNREAD", "is_aligned", "run", "unordered", "version"]

UNREAD = ("dlse",)
run = backward


def unordered(workload, config):
    """Returns the output that is added up in no fixed order."""
    return () if workload.deterministic else ("dq",)
