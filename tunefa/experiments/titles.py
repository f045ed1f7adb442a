"""The titles of workloads in tables and plots."""

from __future__ import annotations

from tunefa.spec.workload import Workload


def title(workload: Workload, separator: str = ", ") -> str:
    """Returns a workload in words, such as `batch 4, 32 heads, 2,048 x 2,048, D 64, fp16, causal`.

    The separator stands before the lengths, and may be a line break. Lengths are query rows x keys.
    """
    heads = f"{workload.heads} heads"
    if workload.heads_kv != workload.heads:
        heads += f" on {workload.heads_kv}"
    dims = f"D {workload.head_dim}"
    if workload.head_dim_v != workload.head_dim:
        dims += f"/{workload.head_dim_v}"
    mask = "causal" if workload.causal else "full"
    if workload.window_left is not None or workload.window_right is not None:
        mask += ", window"
    flags = [name for name in ("softcap", "varlen", "deterministic") if getattr(workload, name)]
    flags += ["backward"] if workload.op == "bwd" else []
    lengths = f"{workload.seqlen_q:,} x {workload.seqlen_k:,}"
    parts = ", ".join([lengths, dims, workload.dtype, mask, *flags])
    return f"batch {workload.batch}, {heads}{separator}{parts}"
