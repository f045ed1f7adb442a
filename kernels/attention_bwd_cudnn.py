"""The gradients of attention by the cuDNN inside PyTorch.

Algorithm: the backward pass of FlashAttention-2 (arXiv:2307.08691, algorithm 2) in cuDNN's own
kernels, which it chooses by its heuristics. tunefa calls PyTorch's operator
aten::_scaled_dot_product_cudnn_attention_backward and has no part in the kernel. So there are no
parameters, and there is nothing to tune.

On Hopper it is 1.5 to 2 times as fast as the FlashAttention-2 inside PyTorch. So it computes the
gradients there where no record says what is faster, and no kernel of tunefa comes before it.

Causal masks are aligned to the top left there, so it serves them only where there are as many keys
as queries. It has no windows, soft-caps or packed sequences here, no gradient of the logsumexp, and
no deterministic mode: it adds up gradients in any order.
"""

from __future__ import annotations

from tunefa.kernels.library.cudnn import LIBRARY, backward, is_aligned, version

__all__ = ["LIBRARY", "UNREAD", "is_aligned", "run", "unordered", "version"]

UNREAD = ("dlse",)
run = backward


def unordered(workload, config):
    """Returns the outputs that may be added up in no fixed order: cuDNN does not say which."""
    return ("dq", "dk", "dv")
