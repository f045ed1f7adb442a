"""The check whether TMA can access the tensors of an attention backward."""

from tunefa.kernels.hopper import tma


def is_aligned(tensors):
    """Whether TMA can access the tensors of a call, (q, k, v, out, lse, dout, dlse, dq, dk, dv,
    ...): all but lse, dlse and those that follow; see `tma.is_aligned`."""
    return tma.is_aligned(tensors) and tma.is_aligned((tensors[5], *tensors[7:10]))
