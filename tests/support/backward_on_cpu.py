"""Calls of attention_bwd_cuda_sm90 on the CPU: their tensors, their right gradients, their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tests.support.cuda_on_cpu import Mode, OnCpu
from tunefa.spec.workload import Workload

SMALL = {"BLOCK_M": 64, "Q_STAGES": 2, "DO_STAGES": 2, "PING_PONG": 0, "DQ_WARPGROUP": 0,
         "DQ_FIRST": 0, "EARLY_SCORES": 0, "K_IN_REGISTERS": 0, "FOLD_ROW_TERMS": 0, "ZERO_DQ": 1,
         "EARLY_POSTPROCESS": 0, "STAGGER": 0, "HEADS_INSIDE": 0, "PERSISTENT": 0, "K_STAGES": 1,
         "GROUP_SPLITS": 1, "L2_SECTION_HEADS": 1}  # fmt: skip
EARLY = {"DQ_FIRST": 1, "EARLY_SCORES": 1, "K_IN_REGISTERS": 1}
"""The schedule of heads with 64 columns."""
MODES = (
    Mode.LAST_WARP_FIRST | Mode.LATE_READS,
    Mode.LATE_LOADS,
    Mode.LATE_LOADS | Mode.LAST_LOAD_FIRST | Mode.LAST_WARP_FIRST | Mode.LATE_READS,
)
"""Modes in which different things come late."""


def inputs(workload: Workload) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """A call's tensors, whose outputs are NaN, and the right dq, dk and dv."""
    w = workload
    of_q, of_k = (w.batch, w.heads, w.seqlen_q), (w.batch, w.heads_kv, w.seqlen_k)
    return gradients(w, *normal(w, of_q, of_k))


def normal(workload: Workload, of_q: Sequence[int], of_k: Sequence[int]) -> list[Tensor]:
    """Returns q, k, v, dout, and dlse in fp32, for these shapes without their last axes."""
    generator = torch.Generator().manual_seed(0)
    dtype = torch.float16 if workload.dtype == "fp16" else torch.bfloat16
    d, dv = workload.head_dim, workload.head_dim_v
    shapes = [(*of_q, d), (*of_k, d), (*of_k, dv), (*of_q, dv)]
    made = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return [*made, torch.randn(*of_q, generator=generator)]


def gradients(
    workload: Workload, q: Tensor, k: Tensor, v: Tensor, dout: Tensor, dlse: Tensor
) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """Returns what `inputs` does, for these inputs."""
    w, dtype = workload, q.dtype
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(w.group, 1) for x in leaves[1:])
    scores = w.head_dim**-0.5 * leaves[0] @ keys.transpose(-1, -2)
    rows, (left, right) = torch.arange(q.shape[2])[:, None], w.band
    from_diagonal = torch.arange(k.shape[2]) - (rows + k.shape[2] - q.shape[2])
    hidden = torch.zeros_like(from_diagonal, dtype=torch.bool)
    if right is not None:
        hidden |= from_diagonal > right
    if left is not None:
        hidden |= from_diagonal < -left
    scores = scores.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(scores, -1)
    sees = lse.detach() != -torch.inf
    p = torch.exp(scores - lse.masked_fill(~sees, 0.0)[..., None])
    out = p @ values
    loss = (out * dout.double()).sum() + (lse * dlse)[sees].sum()
    found = torch.autograd.grad(loss, leaves)
    empty = [torch.full_like(x, torch.nan) for x in (q, k, v)]
    return (q, k, v, out.detach().to(dtype), lse.detach().float(), dout, dlse, *empty), found


def ran(run: OnCpu, workload: Workload, tensors: tuple[Any, ...], mode: Mode) -> list[Tensor]:
    """Returns dq, dk and dv; their memory is full of NaN before."""
    for each in tensors[7:10]:
        each.fill_(torch.nan)
    run(tensors, workload, mode, sms=3)
    return [each.clone() for each in tensors[7:10]]


def packed(
    workload: Workload, lengths: Sequence[tuple[int, int]]
) -> tuple[tuple[Any, ...], list[Tensor]]:
    """Returns what `inputs` does for sequences with so many (rows, keys). The first one is NaN, and
    so are rows behind the last one, which belong to none."""
    w = replace(workload, batch=1, varlen=False)
    starts = [torch.tensor([0, *each]).cumsum(0).int() for each in zip(*lengths, strict=True)]
    rows, keys = (int(each[-1]) + 9 for each in starts)
    made = [x.transpose(0, 1) for x in normal(w, (w.heads, rows), (w.heads_kv, keys))]
    made[:4] = [x.contiguous() for x in made[:4]]
    empty = [torch.full_like(x, torch.nan) for x in made[:3]]
    out, right = torch.full_like(made[0], torch.nan), [torch.zeros_like(x) for x in made[:3]]
    lse = torch.full((rows, w.heads), torch.nan).t().contiguous()
    for i in range(len(lengths)):
        of_q, of_k = (slice(int(each[i]), int(each[i + 1])) for each in starts)
        places = (of_q, of_k, of_k, of_q, of_q)
        one = [x[place].transpose(0, 1)[None] for x, place in zip(made, places, strict=True)]
        tensors, found = gradients(w, *one)
        out[of_q], lse[:, of_q] = tensors[3][0].transpose(0, 1), tensors[4][0]
        for whole, place, each in zip(right, places, found, strict=False):
            whole[place] = each[0].transpose(0, 1)
    q, k, v, dout, dlse = made
    return (q, k, v, out, lse, dout, dlse.t().contiguous(), *empty, *starts), right
