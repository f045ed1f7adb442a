"""The FlashAttention-2 inside PyTorch, through the operators behind its backend.

They take windows and packed sequences, which scaled_dot_product_attention does not pass on. Their
causal masks are aligned to the bottom right, and their windows do not count the query's own key,
like tunefa's.
"""

from __future__ import annotations

import contextlib
import threading

from tunefa.kernels.library.tensors import readable, sequences_first

LIBRARY = "the FlashAttention-2 inside PyTorch"
_FLAG_LOCK = threading.Lock()
"""Makes sure that only one thread at a time changes PyTorch's flag for deterministic algorithms."""


def version():
    """Returns PyTorch's version; None where it is built without FlashAttention-2."""
    try:
        import torch
    except ImportError:
        return None
    there = torch.backends.cuda.is_flash_attention_available()
    return f"torch {torch.__version__}" if there else None


def is_aligned(tensors):
    """Returns True: what FlashAttention-2 cannot read is copied."""
    return True


def forward(tensors, spec):
    """Returns (out, lse) of the tensors of a forward launch."""
    import torch
    from torch.nn.functional import pad

    q, k, v, _, _, *starts = tensors
    empty = _rows_without_key(spec.workload)
    q, k, v = (readable(sequences_first(x)) for x in (_from(empty, q), k, v))
    no_dropout, no_debug_mask = 0.0, False
    out, lse, *_ = torch.ops.aten._flash_attention_forward.default(
        *(q, k, v, *_sizes(starts, spec), no_dropout, spec.workload.causal, no_debug_mask),
        scale=spec.scale,
        **_window(spec.workload),
    )
    out = sequences_first(out)
    if starts:  # the lse of a row that sees no key is inf
        return out, lse.masked_fill(lse.isposinf(), float("-inf"))
    if empty:
        return pad(out, (0, 0, empty, 0)), pad(lse, (empty, 0), value=float("-inf"))
    return out, lse


def backward(tensors, spec):
    """Returns (dq, dk, dv) of the tensors of a backward launch."""
    import torch
    from torch.nn.functional import pad

    q, k, v, out, lse, dout, _, _, _, _, *starts = tensors
    empty = _rows_without_key(spec.workload)
    q, out, dout = (_from(empty, x) for x in (q, out, dout))
    q, k, v, out, dout = (readable(sequences_first(x)) for x in (q, k, v, out, dout))
    lse = lse[..., empty:] if empty else lse
    if starts:  # with an lse of inf, the probabilities of a row that sees no key are 0
        lse = lse.masked_fill(lse.isneginf(), float("inf"))
    no_dropout = torch.zeros(2, dtype=torch.uint64, device=q.device)
    with _deterministic(spec.workload.deterministic):
        grads = torch.ops.aten._flash_attention_backward.default(
            *(dout, q, k, v, out, lse.contiguous(), *_sizes(starts, spec)),
            *(0.0, spec.workload.causal, no_dropout, no_dropout.new_empty(0)),
            scale=spec.scale,
            **_window(spec.workload),
        )
    if not starts:
        dq, dk, dv = (sequences_first(grad) for grad in grads)
        return (pad(dq, (0, 0, empty, 0)) if empty else dq), dk, dv
    starts_q, starts_k = starts
    return tuple(map(_within, grads, (starts_q, starts_k, starts_k)))


def _rows_without_key(workload):
    """The first rows of dense queries that see no key. The operators do not take them."""
    right = 0 if workload.causal else workload.window_right
    if workload.varlen or right is None:
        return 0
    return max(0, workload.seqlen_q - workload.seqlen_k - right)


def _from(row, x):
    """Dense rows of heads from that row on."""
    return x[:, :, row:] if row else x


def _sizes(starts, spec):
    """The operators' cu_seqlens, None where dense, and the lengths of the longest sequences."""
    longest = spec.workload.seqlen_q - _rows_without_key(spec.workload), spec.workload.seqlen_k
    return *(starts or (None, None)), *longest


def _window(workload):
    """The operators' window: the keys before the diagonal, and those beyond it."""
    right = 0 if workload.causal else workload.window_right
    return {"window_size_left": workload.window_left, "window_size_right": right}


@contextlib.contextmanager
def _deterministic(wanted):
    """Lets the backward pass add its parts of dQ in a fixed order, which PyTorch's flag decides."""
    import torch

    if not wanted or torch.are_deterministic_algorithms_enabled():
        yield
        return
    # With the flag PyTorch also fills new memory, unless it is told not to.
    memory = torch.utils.deterministic
    with _FLAG_LOCK:
        only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
        fills, memory.fill_uninitialized_memory = memory.fill_uninitialized_memory, False
        torch._C._set_deterministic_algorithms(True, warn_only=only_warns)
        try:
            yield
        finally:
            torch._C._set_deterministic_algorithms(False, warn_only=only_warns)
            memory.fill_uninitialized_memory = fills


def _within(grad, cu_seqlens):
    """Returns `grad` with 0 in the rows that belong to no sequence, which are not written."""
    import torch

    row = torch.arange(grad.shape[0], device=grad.device)
    outside = (row < cu_seqlens[0]) | (row >= cu_seqlens[-1])
    return grad.masked_fill(outside[:, None, None], 0.0)
