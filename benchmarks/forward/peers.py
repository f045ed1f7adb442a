"""The peers that tunefa is compared with. Each function makes a call for a workload and its
tensors, in the peer's preferred layout.

The functions of `PEERS` take q, k and v as (batch, heads, seqlen, head_dim) views, and their calls
return such a view. Those of `PACKED_PEERS` take q, k, v, cu_seqlens_q and cu_seqlens_k, and their
calls return (rows, heads, head_dim). A peer that does not serve a workload raises Unserved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tunefa.spec.workload import Workload

Call = Callable[[], Any]
Tensors = tuple[Any, ...]


class Unserved(Exception):
    """A peer does not serve the workload; the message is the reason."""


def cudnn(workload: Workload, tensors: Tensors) -> Call:
    """PyTorch's scaled_dot_product_attention through cuDNN."""
    if workload.window_left is not None:
        raise Unserved("it has no sliding windows")
    if workload.causal and workload.seqlen_q != workload.seqlen_k:
        raise Unserved("its causal mask is aligned to the top left")
    q, k, v = (tensor.contiguous() for tensor in tensors)
    grouped = workload.group > 1

    def call() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=workload.causal, enable_gqa=grouped
            )

    return call


def fa2(workload: Workload, tensors: Tensors) -> Call:
    """The FlashAttention-2 inside PyTorch. Its window does not count the query's own key."""
    q, k, v = _sequences_first(tensors)
    left = workload.window_left
    forward = torch.ops.aten._flash_attention_forward.default

    def call() -> Any:
        out, *_ = forward(
            *(q, k, v, None, None, workload.seqlen_q, workload.seqlen_k, 0.0),
            *(workload.causal, False),  # no debug mask
            window_size_left=left,
            window_size_right=None if left is None else 0,
        )
        return out.transpose(1, 2)

    return call


def flex(workload: Workload, tensors: Tensors) -> Call:
    """FlexAttention, autotuned by Inductor for this shape: 10 to 20 s of compiling."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    # Dynamo compiles a function for at most eight shapes, and then runs it uncompiled.
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False, mode="max-autotune-no-cudagraphs")
    q, k, v = (tensor.contiguous() for tensor in tensors)
    mask, lengths = None, (workload.seqlen_q, workload.seqlen_k)
    if workload.causal:
        mask = create_block_mask(visible(workload), None, None, *lengths, device=q.device)
    return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=workload.group > 1)


def visible(workload: Workload) -> Callable[[Any, Any, Any, Any], Any]:
    """FlexAttention's mask_mod for a causal workload: whether row i sees key j."""
    diagonal = workload.seqlen_k - workload.seqlen_q
    left = workload.window_left

    def seen(batch: Any, head: Any, i: Any, j: Any) -> Any:
        below = j <= i + diagonal
        return below if left is None else below & (j >= i + diagonal - left)

    return seen


def fa4(workload: Workload, tensors: Tensors) -> Call:
    """flash-attn-4 (CuTe). Its window does not count the query's own key."""
    from flash_attn.cute import flash_attn_func  # type: ignore[import-not-found]

    q, k, v = _sequences_first(tensors)
    window = (None, None) if workload.window_left is None else (workload.window_left, 0)

    def call() -> Any:
        made = flash_attn_func(q, k, v, causal=workload.causal, window_size=window)
        return _without_lse(made).transpose(1, 2)

    return call


def fa2_packed(workload: Workload, tensors: Tensors) -> Call:
    """The FlashAttention-2 inside PyTorch."""
    arguments = (*tensors, workload.seqlen_q, workload.seqlen_k, 0.0)
    forward = torch.ops.aten._flash_attention_forward.default

    def call() -> Any:
        out, *_ = forward(*arguments, workload.causal, False)  # no debug mask
        return out

    return call


def fa4_packed(workload: Workload, tensors: Tensors) -> Call:
    """flash-attn-4 (CuTe)."""
    from flash_attn.cute import flash_attn_varlen_func

    q, k, v, cu_seqlens_q, cu_seqlens_k = tensors

    def call() -> Any:
        made = flash_attn_varlen_func(
            *(q, k, v),
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            max_seqlen_q=workload.seqlen_q,
            max_seqlen_k=workload.seqlen_k,
            causal=workload.causal,
        )
        return _without_lse(made)

    return call


def not_called(workload: Workload, tensors: Tensors) -> Call:
    """Stands for a peer without a function for packed sequences."""
    raise Unserved("it is not compared on packed sequences")


def _sequences_first(tensors: Tensors) -> Tensors:
    q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in tensors)
    return q, k, v


def _without_lse(made: Any) -> Any:
    """The output of flash-attn-4, which some versions return without lse."""
    return made[0] if isinstance(made, tuple) else made


PEERS: Mapping[str, Callable[[Workload, Tensors], Call]] = {
    "cudnn": cudnn,
    "fa2": fa2,
    "flex": flex,
    "fa4": fa4,
}
PACKED_PEERS = {**dict.fromkeys(PEERS, not_called), "fa2": fa2_packed, "fa4": fa4_packed}
