"""PyTorch's memory-efficient attention, through the operators behind its backend.

Its causal masks are aligned to the top left, so it serves them only where there are as many keys as
queries. It has no groups of query heads: K and V would have to be copied for each.
"""

from __future__ import annotations

from tunefa.kernels.library.tensors import readable, sequences_first

LIBRARY = "the memory-efficient attention inside PyTorch"
_LSE_ROWS = 32
"""Rows of the logsumexp come in multiples of this; further ones are inf, which makes their
probabilities 0 (kAlignLSE in PyTorch's kernel_forward.h)."""


def version():
    """Returns PyTorch's version; None where it is built without CUDA, and so without this
    library."""
    try:
        import torch
    except ImportError:
        return None
    return f"torch {torch.__version__}" if torch.version.cuda else None


def is_aligned(tensors):
    """Returns True: what the library cannot read is copied."""
    return True


def forward(tensors, spec):
    """Returns (out, lse) of the tensors of a forward launch."""
    import torch

    q, k, v = map(readable, tensors[:3])
    writes_lse, no_dropout = True, 0.0
    out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention.default(
        *(q, k, v, None, writes_lse, no_dropout, spec.workload.causal), scale=spec.scale
    )
    return out, lse[..., : q.shape[2]]


def backward(tensors, spec):
    """Returns (dq, dk, dv) of the tensors of a backward launch.

    The operator reads the output as if it lay in memory as its forward pass leaves it: heads behind
    rows, whatever its strides say (PyTorch 2.11).
    """
    import torch
    from torch.nn.functional import pad

    q, k, v, out, lse, dout = (*map(readable, tensors[:4]), tensors[4], readable(tensors[5]))
    out = sequences_first(sequences_first(out).contiguous())
    lse = pad(lse, (0, -q.shape[2] % _LSE_ROWS), value=float("inf")).contiguous()
    no_dropout = torch.empty((), dtype=torch.int64, device=q.device)
    of_bias = False
    return torch.ops.aten._scaled_dot_product_efficient_attention_backward.default(
        *(dout, q, k, v, None, out, lse, no_dropout, no_dropout, 0.0),
        *([True, True, True, of_bias], spec.workload.causal),
        scale=spec.scale,
    )[:3]
