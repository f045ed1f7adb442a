"""TileOPs' attention, compiled by TileLang for one shape: tens of seconds for each kernel."""

from __future__ import annotations

import importlib
from typing import Any

from tunefa.measure.check import softcap
from tunefa.measure.peer import Call, Peer, Tensors, require, sequences_first
from tunefa.spec.workload import Workload

_FEATURES = ("window", "window on both sides", "lower right", "softcap", "varlen", "grouped heads")


def tileops(workload: Workload, tensors: Tensors) -> Call:
    """TileOPs, whose windows do not count the query's own key. It says itself which head
    dimensions no kernel of its own serves."""
    import torch

    require(workload, _FEATURES, ("bf16", "fp16", "e4m3"))
    operators: Any = importlib.import_module("tileops.attention")
    left, right = (-1 if side is None else side for side in workload.band)
    if workload.causal and workload.window_left is None:
        right = -1  # the flag for a causal mask says it
    options: dict[str, Any] = {
        "is_causal": workload.causal,
        "window_size_left": left,
        "window_size_right": right,
        "softcap": softcap(workload),
    }
    if workload.dtype == "e4m3":
        options["out_dtype"] = torch.bfloat16
    if workload.varlen:
        packed = operators.GQAVarlenFwdOp(**options)
        return lambda: packed(*tensors)
    dense = operators.GQADenseFwdOp(**options)
    arguments = (*sequences_first(tensors), *tensors[3:])
    return lambda: dense(*arguments).transpose(1, 2)


PEERS = (Peer("tileops", "TileOPs", tileops, "tileops.attention", "tileops"),)
