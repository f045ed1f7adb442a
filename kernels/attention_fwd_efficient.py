"""The forward pass of attention by the memory-efficient attention inside PyTorch.

Algorithm: exact attention in blocks of keys, with running maxima and sums (arXiv:2112.05682), by
xFormers' kernels of CUTLASS GEMMs, which PyTorch chooses by head_dim and chip. tunefa calls
PyTorch's operator aten::_scaled_dot_product_efficient_attention and has no part in the kernel. So
there are no parameters, and there is nothing to tune.

It competes on a device like any other kernel: it is checked, timed and raced, and a record may say
that it is the fastest for a workload. Its record holds PyTorch's version, and does not serve with
another one. Without a record, tunefa's own kernels and the other libraries come first.

Of the libraries it alone has fp32, and head dimensions of V that differ from those of Q and K. It
has no windows, soft-caps, packed sequences or groups of query heads here.
"""

from __future__ import annotations

from tunefa.kernels.library.efficient import LIBRARY, forward, is_aligned, version

__all__ = ["LIBRARY", "is_aligned", "run", "version"]

run = forward
