"""The forward pass of attention by the cuDNN inside PyTorch.

Algorithm: FlashAttention (arXiv:2205.14135) in cuDNN's own kernels, which it chooses by its
heuristics; on Hopper they are warp-specialised, with TMA and WGMMA. tunefa calls PyTorch's
operator aten::_scaled_dot_product_cudnn_attention and has no part in the kernel. So there are no
parameters, and there is nothing to tune.

It competes on a device like any other kernel: it is checked, timed and raced, and a record may say
that cuDNN is the fastest for a workload. Its record holds cuDNN's version, and does not serve with
another one. Without a record, tunefa's own kernels come first.

Causal masks are aligned to the top left there, so it serves them only where there are as many keys
as queries. It has no windows, soft-caps or packed sequences here.
"""

from __future__ import annotations

from tunefa.kernels.library.cudnn import LIBRARY, forward, is_aligned, version

__all__ = ["LIBRARY", "is_aligned", "run", "version"]

run = forward
