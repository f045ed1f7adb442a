"""The gradients of attention by flash-attn-4, where that package is installed.

Algorithm: FlashAttention-4's backward pass in CuTe DSL. On Hopper two consumer warpgroups compute a
tile of keys against blocks of queries, and their parts of dQ are added to a sum in fp32 by TMA.
tunefa calls the package's function and has no part in the kernel. So there are no parameters, and
there is nothing to tune. The package compiles a kernel at its first call, which takes seconds.

It is a beta version, so it computes gradients only where a record says that it is the fastest: it
was checked, timed and raced then. The record holds its version, and does not serve with another.

It has no gradient of the logsumexp here, and no windows, soft-caps or packed sequences on Hopper.
It adds up dQ in no fixed order.
"""

from __future__ import annotations

import importlib.util
from importlib import metadata

from tunefa.kernels.library.tensors import readable, sequences_first

LIBRARY = "flash-attn-4"
UNREAD = ("dlse",)


def version():
    """Returns the package's version; None where it is not installed."""
    try:
        there = importlib.util.find_spec("flash_attn.cute") is not None
        return f"flash-attn-4 {metadata.version('flash-attn-4')}" if there else None
    except ImportError:  # of flash_attn, or of the package's metadata
        return None


def is_aligned(tensors):
    """Returns True: what the package cannot read is copied."""
    return True


def unordered(workload, config):
    """Returns the outputs that are added up in no fixed order; dK and dV are where query heads
    share a KV head."""
    return ("dq", "dk", "dv") if workload.group > 1 else ("dq",)


def run(tensors, spec):
    """Returns (dq, dk, dv)."""
    from flash_attn.cute import interface

    q, k, v, out, dout = (readable(sequences_first(tensors[i])) for i in (0, 1, 2, 3, 5))
    grads = interface._flash_attn_bwd(
        *(q, k, v, out, dout, tensors[4].contiguous()),
        softmax_scale=spec.scale,
        causal=spec.workload.causal,
    )
    return tuple(sequences_first(grad) for grad in grads[:3])
