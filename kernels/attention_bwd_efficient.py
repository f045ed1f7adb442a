"""The gradients of attention by the memory-efficient attention inside PyTorch.

Algorithm: xFormers' kernel of CUTLASS GEMMs. CTAs own tiles of keys, keep their dK and dV, and add
to dQ. tunefa calls PyTorch's operator aten::_scaled_dot_product_efficient_attention_backward and
has no part in the kernel. So there are no parameters, and there is nothing to tune.

Without a record all other kernels come before it. So it computes the gradients that they do not
serve, those of fp32 beyond head_dim 64 or with another head_dim of V, where there are no groups of
query heads.

It has no windows, soft-caps or packed sequences here, no gradient of the logsumexp, and no
deterministic mode.
"""

from __future__ import annotations

from tunefa.kernels.library.efficient import LIBRARY, backward, is_aligned, version

__all__ = ["LIBRARY", "UNREAD", "is_aligned", "run", "unordered", "version"]

UNREAD = ("dlse",)
run = backward


def unordered(workload, config):
    """Returns the output that several CTAs add to in no fixed order."""
    return ("dq",)
