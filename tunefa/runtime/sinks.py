"""Attention sinks: a logit of each head beside the scores of a row, which has no value.

With the logit s of a row's head and the logsumexp l of its scores, the row's output is multiplied
by exp(l) / (exp(l) + exp(s)), which is the sigmoid of l - s (Xiao et al., arXiv:2309.17453;
gpt-oss, arXiv:2508.10925, learns s). So sinks need no kernel of their own, and autograd has their
gradient from that of the logsumexp.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.runtime.call import PACKED, Options, Tensors, rows_behind


def check_sinks(sinks: object, tensors: Tensors, options: Options) -> None:
    """Raises TunefaError unless the sinks are a logit for each of q's heads, on its device."""
    q = tensors.q
    if not isinstance(sinks, Tensor):
        raise TunefaError(f"sinks is a {type(sinks).__name__}: give a torch.Tensor, (heads,)")
    if not isinstance(q, Tensor) or q.dim() < 3:
        return  # the check of q says what is wrong
    heads = q.shape[1 if options.layout in ("bhsd", PACKED) else 2]
    if tuple(sinks.shape) != (heads,) or not sinks.dtype.is_floating_point:
        raise TunefaError(
            f"sinks is {tuple(sinks.shape)}, {sinks.dtype}: give (heads,), here ({heads},), in a "
            f"floating-point dtype"
        )
    if sinks.device != q.device:
        raise TunefaError(
            f"sinks is on {sinks.device} and q is on {q.device}: move one, such as "
            f"sinks.to(q.device)"
        )


def with_sinks(
    out: Tensor, lse: Tensor, sinks: Tensor, layout: str, starts_q: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Returns (out, lse) with sinks, from those without.

    lse is (batch, heads, rows), or (heads, rows) of packed sequences, whose cumulative lengths are
    `starts_q`. A row without a key keeps its zeros, and its lse becomes the sink. Rows that belong
    to no sequence, where out and lse may be NaN, take no part in the gradient of the sinks.
    """
    logits = sinks.to(lse.dtype)[:, None]
    behind = None
    if starts_q is not None:
        behind = rows_behind(lse.shape[-1], starts_q)
        lse = lse.masked_fill(behind, 0.0)
    share = _share(lse, logits)
    if behind is not None:
        share = share.masked_fill(behind, 0.0)  # its gradient is the product with `out`
    share = share if layout == "bhsd" else share.transpose(-1, -2)
    return (out * share[..., None]).to(out.dtype), _whole(lse, logits)


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor, starts_q: Tensor) -> Tensor:
    """Returns the lse with sinks of packed sequences, and gives `out` their part in place.

    Rows of `out` that belong to no sequence keep what they are.
    """
    logits = sinks.to(lse.dtype)[:, None]
    behind = rows_behind(lse.shape[-1], starts_q)
    share = _share(lse, logits).masked_fill(behind, 1.0)
    out.mul_(share.T[..., None])
    return torch.logaddexp(lse, logits)


def _whole(lse: Tensor, logits: Tensor) -> Tensor:
    """The logsumexp with sinks."""
    if not (torch.is_grad_enabled() and (lse.requires_grad or logits.requires_grad)):
        return torch.logaddexp(lse, logits)
    # The sum of two -inf has a gradient of NaN: such a row has neither a key nor a sink.
    nothing = torch.maximum(lse, logits) == -math.inf
    found = torch.logaddexp(lse.masked_fill(nothing, 0.0), logits)
    return found.masked_fill(nothing, -math.inf)


def _share(lse: Tensor, logits: Tensor) -> Tensor:
    """The part of a row's probability that its keys have."""
    # Finite, because -inf minus -inf is NaN: the sigmoid is 0 or 1 all the same.
    return torch.sigmoid(lse - logits.clamp_min(torch.finfo(lse.dtype).min))
