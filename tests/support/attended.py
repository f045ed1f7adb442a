"""The tensors of a backward call after a forward pass, and the gradients that it should find."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from tunefa.compile.contract import LaunchSpec

Kind = Literal["normal", "low", "one key"]


def attended(spec: LaunchSpec, kind: Kind = "normal") -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """A call's tensors with scratch memory full of NaN, and dq, dk and dv in fp64.

    With "low" all scores are far below 0. With "one key" all queries attend to key 0, except for
    about a millionth each to the others, whose values are large.
    """
    tensors, w = _tensors(spec), spec.workload
    q, k, v, out, lse, dout, dlse = tensors[:7]
    if kind == "low":
        q.fill_(16.0), k.fill_(-16.0)
    if kind == "one key":
        q.mul_(0.1).add_(1.0), k.mul_(0.1), v[:, :, 1:].mul_(200.0)
        k[:, :, 0] = 14.0 / (spec.scale * w.head_dim)
    leaves = [x.double().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(w.group, 1) for x in leaves[1:])
    s = spec.scale * leaves[0] @ keys.transpose(-1, -2)
    diagonal, (left, right) = w.seqlen_k - w.seqlen_q, w.band
    seen = torch.ones(s.shape[-2:], dtype=torch.bool)
    if right is not None:
        seen = seen.tril(diagonal + right)
    if left is not None:
        seen = seen.triu(diagonal - left)
    s = s.masked_fill(~seen, -math.inf)
    sums = torch.logsumexp(s, -1)
    sees = sums.detach() != -math.inf
    p = torch.exp(s - sums.masked_fill(~sees, 0.0)[..., None])
    made = p @ values
    loss = (made * dout.double()).sum() + (sums * dlse)[sees].sum()
    expected = torch.autograd.grad(loss, leaves)
    out.copy_(made.detach())
    lse.copy_(sums.detach())
    return tensors, expected


def _tensors(spec: LaunchSpec) -> tuple[Any, ...]:
    """Inputs, and outputs and scratch memory full of NaN. Heads lie behind rows; dlse has all
    strides or none."""
    w = spec.workload
    torch.manual_seed(0)

    def normal(heads: int, length: int) -> Tensor:
        made = torch.randn(w.batch, length, heads, w.head_dim, dtype=torch.float16)
        return made.transpose(1, 2)

    q, out, dout = (normal(w.heads, w.seqlen_q) for _ in range(3))
    k, v = (normal(w.heads_kv, w.seqlen_k) for _ in range(2))
    lse = torch.empty(w.batch, w.heads, w.seqlen_q)
    dlse = torch.randn(w.batch, w.seqlen_q, w.heads).transpose(1, 2)
    if w.causal:
        dlse = torch.zeros(()).expand(lse.shape)
    made = [torch.full_like(x, math.nan) for x in (q, k, v)]
    call = (q, k, v, out, lse, dout, dlse, *made)
    scratch = spec.scratch(call)
    return *call, *(torch.full(shape, math.nan, dtype=dtype) for shape, dtype in scratch)
