"""Attention in PyTorch: scaled_dot_product_attention through each of its backends, and operators.

PyTorch's flag for a causal mask is aligned to the top left. Masks that it does not express
(windows, and causal ones where seqlen_q differs from seqlen_k) are given as a matrix of booleans,
made beforehand, as a user of scaled_dot_product_attention has to.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

from tunefa.measure.check import softcap
from tunefa.measure.peer import (
    Call,
    Make,
    Peer,
    Tensors,
    Unserved,
    heads_first,
    require,
    sequences_first,
)
from tunefa.spec.workload import Workload

_HALF = ("bf16", "fp16")
_MASKS = ("window", "window on both sides", "lower right")


def visible(workload: Workload, device: Any) -> Any:
    """Returns which keys a query sees, (seqlen_q, seqlen_k) booleans; None if it sees all, or if
    the flag for a causal mask says it."""
    import torch

    left, right = workload.band
    if (left is None and right is None) or is_causal(workload):
        return None
    diagonal = workload.seqlen_k - workload.seqlen_q
    seen = torch.ones(workload.seqlen_q, workload.seqlen_k, dtype=torch.bool, device=device)
    if right is not None:
        seen = seen.tril_(diagonal + right)
    return seen if left is None else seen.triu_(diagonal - left)


def is_causal(workload: Workload) -> bool:
    """Whether PyTorch's flag for a causal mask, which is aligned to the top left, says the mask."""
    square = workload.seqlen_q == workload.seqlen_k
    return workload.causal and workload.window_left is None and square


def _sdpa(backend: str | None, called: str = "") -> Make:
    """Makes calls of scaled_dot_product_attention through a backend; through PyTorch's choice for
    None. `called` is how PyTorch's warnings begin that say why the backend does not serve a call.
    """

    def make(workload: Workload, tensors: Tensors) -> Call:
        import torch.nn.functional as F
        from torch.nn.attention import SDPBackend, sdpa_kernel

        dtypes = (*_HALF, "fp32")
        require(workload, (*_MASKS, "unequal head dims", "grouped heads"), dtypes)
        q, k, v = heads_first(tensors)
        mask, causal, grouped = visible(workload, q.device), is_causal(workload), workload.group > 1

        def plain() -> Any:
            return F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, enable_gqa=grouped)

        if backend is None:
            return plain
        chosen = getattr(SDPBackend, backend)

        def through_backend() -> Any:
            with sdpa_kernel(chosen):
                return plain()

        if called:
            _require_device(q)
            _try(through_backend, called)
        return through_backend

    return make


def _require_device(tensor: Any) -> None:
    if not tensor.is_cuda:
        raise Unserved("it runs on CUDA devices only")


def _try(call: Call, called: str) -> None:
    """Calls once. Raises Unserved with the reason from PyTorch's warnings where a backend does not
    serve the call: they name each backend, and then its reason."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            call()
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            said = [str(each.message).partition(" (Triggered")[0].strip() for each in caught]
            raise Unserved(f"PyTorch says: {reason_among(said, called)}") from error


def reason_among(said: Sequence[str], called: str) -> str:
    """Returns the warning that follows the one which begins with `called`: the reason of that
    backend. A general sentence where there is none."""
    for line, reason in itertools.pairwise(said):
        if line.lower().startswith(called.lower()) and not reason.endswith("because:"):
            return reason
    return "no available kernel"


def flash(workload: Workload, tensors: Tensors) -> Call:
    """The FlashAttention-2 inside PyTorch, through the operator behind its backend.

    The operator takes windows and packed sequences, which scaled_dot_product_attention does not
    pass on. Its windows do not count the query's own key.
    """
    import torch

    require(workload, (*_MASKS, "varlen", "grouped heads"), _HALF)
    _require_device(tensors[0])
    forward = torch.ops.aten._flash_attention_forward.default
    q, k, v = tensors[:3] if workload.varlen else sequences_first(tensors)
    starts = tensors[3:5] if workload.varlen else (None, None)
    lengths = workload.seqlen_q, workload.seqlen_k
    left, right = workload.band
    if workload.causal and left is None:
        right = None  # the flag says it

    def call() -> Any:
        out, *_ = forward(
            *(q, k, v, *starts, *lengths, 0.0, workload.causal, False),  # no debug mask
            window_size_left=left,
            window_size_right=right,
        )
        return out if workload.varlen else out.transpose(1, 2)

    return call


def operators(workload: Workload, tensors: Tensors) -> Call:
    """Attention as textbooks write it, in PyTorch's operators: the standard attention of write-ups.

    The scores of all heads are in memory, in the dtype of q, as matmul, scale, mask, softmax and
    matmul each write a matrix. The mask is made beforehand. Query heads that share a KV head are
    stacked below each other, so K and V are not repeated.
    """
    import torch

    require(workload, (*_MASKS, "softcap", "unequal head dims", "grouped heads"), (*_HALF, "fp32"))
    q, k, v = heads_first(tensors)
    batch, heads, rows, _ = q.shape
    stacked = q.view(batch, workload.heads_kv, workload.group * rows, workload.head_dim)
    scale, cap = workload.head_dim**-0.5, softcap(workload)
    seen = visible(workload, q.device)
    if is_causal(workload):
        seen = torch.ones(rows, rows, dtype=torch.bool, device=q.device).tril_()
    hidden = None if seen is None else ~seen

    def call() -> Any:
        scores = torch.matmul(stacked, k.transpose(2, 3)) * scale
        scores = scores.view(batch, heads, rows, workload.seqlen_k)
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        if hidden is not None:
            scores = scores.masked_fill(hidden, float("-inf"))
        p = torch.softmax(scores, dim=-1)
        out = torch.matmul(p.view(*stacked.shape[:3], workload.seqlen_k), v)
        return out.view(batch, heads, rows, workload.head_dim_v)

    return call


PEERS = (
    Peer("sdpa", "SDPA", _sdpa(None), "torch", backward="unordered"),
    Peer(
        "cudnn",
        "SDPA cuDNN",
        _sdpa("CUDNN_ATTENTION", "CuDNN attention"),
        "torch",
        backward="unordered",
    ),
    Peer("fa2", "FA2 in PyTorch", flash, "torch", backward="ordered"),
    Peer(
        "efficient",
        "SDPA efficient",
        _sdpa("EFFICIENT_ATTENTION", "Memory efficient"),
        "torch",
        backward="unordered",
    ),
    Peer("math", "SDPA math", _sdpa("MATH"), "torch", backward="ordered"),
    Peer("operators", "PyTorch ops", operators, "torch", backward="ordered"),
)
