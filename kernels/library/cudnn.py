"""The fused attention of cuDNN, through the operators behind PyTorch's backend.

Its causal masks are aligned to the top left, so it serves them only where there are as many keys as
queries.
"""

from __future__ import annotations

from tunefa.kernels.library.tensors import readable

LIBRARY = "the cuDNN inside PyTorch"
OLDEST = 90501
"""Before 9.5.1 the backward pass took the strides of out for those of dout."""


def version():
    """Returns cuDNN's version; None where PyTorch has none, or one that is too old."""
    try:
        import torch
    except ImportError:
        return None
    number = torch.backends.cudnn.version()
    return None if number is None or number < OLDEST else f"cudnn {number}"


def is_aligned(tensors):
    """Returns True: what cuDNN cannot read is copied."""
    return True


def forward(tensors, spec):
    """Returns (out, lse) of the tensors of a forward launch."""
    import torch

    q, k, v = map(readable, tensors[:3])
    writes_lse, no_dropout, no_debug_mask = True, 0.0, False
    out, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        *(q, k, v, None, writes_lse, no_dropout, spec.workload.causal, no_debug_mask),
        scale=spec.scale,
    )
    return out, lse.reshape(q.shape[:3])


def backward(tensors, spec):
    """Returns (dq, dk, dv) of the tensors of a backward launch."""
    import torch

    q, k, v, out, lse, dout = (*map(readable, tensors[:4]), *tensors[4:6])
    out, dout = _like(out, q), _like(dout, q)
    no_dropout = torch.empty((), dtype=torch.int64, device=q.device)
    return torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(
        *(dout, q, k, v, out, lse.contiguous()[..., None], no_dropout, no_dropout),
        *(None, None, None, q.shape[2], k.shape[2], 0.0, spec.workload.causal),
        scale=spec.scale,
    )


def _like(x, q):
    """Returns x with the strides of `torch.empty_like(q)`.

    PyTorch keeps cuDNN's plans by the strides of q, k and v alone: a plan that was made for other
    strides of out or dout would run, and read the wrong elements.
    """
    import torch

    dense = x.is_contiguous() or x.transpose(1, 2).is_contiguous()
    if dense and x.stride() == q.stride():  # the usual case, in less time
        return x
    wanted = torch.empty_like(q, device="meta").stride()
    return x if x.stride() == wanted else torch.empty_like(q).copy_(x)
