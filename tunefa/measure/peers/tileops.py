"""TileOPs' attention, compiled by TileLang for one shape: tens of seconds for each kernel."""

from __future__ import annotations

import importlib
from typing import Any

from tunefa.measure.check import softcap
from tunefa.measure.peer import Call, Peer, Tensors, Unserved, require, sequences_first
from tunefa.spec.workload import Workload

_FEATURES = ("window", "window on both sides", "lower right", "softcap", "varlen", "grouped heads")


def tileops(workload: Workload, tensors: Tensors) -> Call:
    """TileOPs, whose windows do not count the query's own key. It says itself which head
    dimensions no kernel of its own serves."""
    import torch

    require(workload, _FEATURES, ("bf16", "fp16", "e4m3"))
    left, right = (-1 if side is None else side for side in workload.band)
    if workload.causal and workload.window_left is None:
        right = -1  # the flag for a causal mask says it
    options: dict[str, Any] = {
        "is_causal": workload.causal,
        "window_size_left": left,
        "window_size_right": right,
        "softcap": softcap(workload),
    }
    if workload.op == "bwd":
        return _differentiable(workload, tensors, options)
    operators: Any = importlib.import_module("tileops.attention")
    if workload.dtype == "e4m3":
        options["out_dtype"] = torch.bfloat16
    if workload.varlen:
        packed = operators.GQAVarlenFwdOp(**options)
        return lambda: packed(*tensors)
    dense = operators.GQADenseFwdOp(**options)
    arguments = (*sequences_first(tensors), *tensors[3:])
    return lambda: dense(*arguments).transpose(1, 2)


def _differentiable(workload: Workload, tensors: Tensors, options: dict[str, Any]) -> Call:
    """Returns the forward pass that returns logsumexp too, with the gradients of its output.

    The gradients are those of GQADenseBwdOp. Its kernel for head_dim 128 keeps the sum of dQ in
    memory of its own, which the call before has cleared.
    """
    import torch

    if workload.varlen:
        raise Unserved("it has no gradients of packed sequences")
    if workload.seqlen_q != workload.seqlen_k:
        raise Unserved("it has gradients only where seqlen_q equals seqlen_k")
    require(workload, ("grouped heads",), ("bf16", "fp16"))
    operators: Any = importlib.import_module("tileops.attention")
    forward = operators.GQADenseWithLSEFwdOp(**options)
    backward = operators.GQADenseBwdOp(**options)

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            out, lse = forward(q, k, v)
            ctx.save_for_backward(q, k, v, out, lse)
            return out

        @staticmethod
        def backward(ctx: Any, dout: Any) -> Any:
            q, k, v, out, lse = ctx.saved_tensors
            return backward(dout, q, k, v, out, lse)

    q, k, v = sequences_first(tensors)
    apply: Any = Attention.apply
    return lambda: apply(q, k, v).transpose(1, 2)


PEERS = (Peer("tileops", "TileOPs", tileops, "tileops.attention", "tileops", "unordered"),)
