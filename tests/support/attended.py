"""The tensors of a backward call after a forward pass, and the gradients that it should find."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.support import backward_rows
from tunefa.compile.contract import LaunchSpec


def attended(spec: LaunchSpec, low: bool = False) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """A call's tensors with scratch memory full of NaN, and dq, dk and dv in fp64.

    `low`: all scores are far below 0.
    """
    tensors, w = backward_rows.tensors_of(spec), spec.workload
    q, k, v, out, lse, dout, dlse = tensors[:7]
    if low:
        q.fill_(16.0), k.fill_(-16.0)
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
