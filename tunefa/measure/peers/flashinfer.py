"""FlashInfer's prefill of a batch whose keys and values are packed.

Dense batches are packed ones of equal lengths, as their memory is the same. What FlashInfer plans
on the host for given lengths is done once, beforehand, as its documentation intends.
"""

from __future__ import annotations

import importlib
from typing import Any

from tunefa.measure.check import softcap
from tunefa.measure.peer import Call, Peer, Tensors, require, sequences_first
from tunefa.spec.workload import Workload

_WORKSPACE_BYTES = 128 * 2**20
"""The size that FlashInfer's documentation recommends."""


def flashinfer(workload: Workload, tensors: Tensors) -> Call:
    """FlashInfer with the back end that it chooses. Its windows reach back from the diagonal."""
    import torch

    features = ("window", "lower right", "softcap", "varlen", "unequal head dims", "grouped heads")
    require(workload, features, ("bf16", "fp16"))
    library: Any = importlib.import_module("flashinfer")
    if workload.varlen:
        q, k, v, starts_q, starts_k = tensors
    else:
        q, k, v = (tensor.flatten(0, 1) for tensor in sequences_first(tensors))
        steps = torch.arange(workload.batch + 1, dtype=torch.int32, device=q.device)
        starts_q, starts_k = steps * workload.seqlen_q, steps * workload.seqlen_k
    workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = library.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        *(starts_q, starts_k, workload.heads, workload.heads_kv, workload.head_dim),
        head_dim_vo=workload.head_dim_v,
        causal=workload.causal,
        window_left=-1 if workload.window_left is None else workload.window_left,
        logits_soft_cap=softcap(workload),
        q_data_type=q.dtype,
        kv_data_type=k.dtype,
    )
    if workload.varlen:
        return lambda: wrapper.run(q, k, v)
    shape = (workload.batch, workload.seqlen_q, workload.heads, workload.head_dim_v)
    return lambda: wrapper.run(q, k, v).view(shape).transpose(1, 2)


PEERS = (Peer("flashinfer", "FlashInfer", flashinfer, "flashinfer", "flashinfer-python"),)
