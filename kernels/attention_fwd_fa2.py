"""The forward pass of attention by the FlashAttention-2 inside PyTorch.

Algorithm: FlashAttention-2 (arXiv:2307.08691) in CUDA C++ for sm80, which newer chips run too. A
CTA owns a tile of query rows; PyTorch chooses its size by head_dim and chip. tunefa calls PyTorch's
operator aten::_flash_attention_forward and has no part in the kernel. So there are no parameters,
and there is nothing to tune.

It competes on a device like any other kernel: it is checked, timed and raced, and a record may say
that it is the fastest for a workload. Its record holds PyTorch's version, and does not serve with
another one. Without a record, tunefa's own kernels come first, then cuDNN.

It has windows and packed sequences, but no soft-cap, and one head_dim for Q, K and V.
"""

from __future__ import annotations

from tunefa.kernels.library.flash_attention_2 import LIBRARY, forward, is_aligned, version

__all__ = ["LIBRARY", "is_aligned", "run", "version"]

run = forward
