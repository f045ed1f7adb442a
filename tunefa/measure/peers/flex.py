"""FlexAttention, compiled by Inductor for one shape: 10 to 20 s of autotuning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunefa.measure.check import softcap
from tunefa.measure.peer import Call, Peer, Tensors, heads_first, require
from tunefa.spec.workload import Workload

_FEATURES = ("window", "window on both sides", "lower right", "softcap", "grouped heads")


def flex(workload: Workload, tensors: Tensors) -> Call:
    """FlexAttention, with max-autotune on a GPU. On the CPU it is not compiled."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    require(workload, (*_FEATURES, "unequal head dims"), ("bf16", "fp16", "fp32"))
    q, k, v = heads_first(tensors)
    computed: Any = flex_attention
    if q.is_cuda:
        # Dynamo compiles a function for at most eight shapes, and then runs it uncompiled.
        torch.compiler.reset()
        computed = torch.compile(flex_attention, dynamic=False, options=autotuned())
    seen, lengths = visible(workload), (workload.seqlen_q, workload.seqlen_k)
    mask = seen and create_block_mask(seen, None, None, *lengths, device=q.device)
    modified, grouped = capped(workload), workload.group > 1
    return lambda: computed(q, k, v, modified, mask, enable_gqa=grouped)


def autotuned() -> dict[str, Any]:
    """Returns Inductor's options of the mode max-autotune-no-cudagraphs, without the table of all
    tried configs, which it prints for each workload otherwise."""
    import torch._inductor as inductor

    modes: Any = inductor.list_mode_options()
    known: Any = inductor.list_options()  # releases differ
    quiet = {"autotune_num_choices_displayed": 0, "max_autotune_report_choices_stats": False}
    kept = {name: value for name, value in quiet.items() if name in known}
    return {**modes["max-autotune-no-cudagraphs"], **kept}


def visible(workload: Workload) -> Callable[..., Any] | None:
    """FlexAttention's mask_mod: whether row i sees key j; None if all rows see all keys."""
    diagonal = workload.seqlen_k - workload.seqlen_q
    left, right = workload.band
    if left is None and right is None:
        return None

    def seen(batch: Any, head: Any, i: Any, j: Any) -> Any:
        if left is None:
            return j <= i + diagonal + right
        after = j >= i + diagonal - left
        return after if right is None else after & (j <= i + diagonal + right)

    return seen


def capped(workload: Workload) -> Callable[..., Any] | None:
    """FlexAttention's score_mod for a soft-cap; None without one."""
    import torch

    cap = softcap(workload)
    if cap is None:
        return None

    def modified(score: Any, batch: Any, head: Any, i: Any, j: Any) -> Any:
        return cap * torch.tanh(score / cap)

    return modified


PEERS = (
    Peer("flex", "FlexAttention", flex, "torch.nn.attention.flex_attention", backward="ordered"),
)
