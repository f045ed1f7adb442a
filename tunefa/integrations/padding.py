"""Attention of batches with padding, as that of packed sequences.

Padding goes behind the last sequence, where it belongs to none. Its number is known on the device
only, and nothing waits for that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from tunefa.runtime.api_varlen import flash_attention_varlen
from tunefa.runtime.call import rows_behind


def attention(
    inputs: tuple[Tensor, ...], valid_q: Tensor | None, valid_k: Tensor, named: dict[str, Any]
) -> Tensor:
    """Returns the attention of q, (batch, rows, heads, head_dim), over k and v, (batch, keys,
    heads_kv, head_dim | head_dim_v), without padding; rows that are padding are 0.

    valid_k, (batch, keys), says which keys are no padding, and valid_q, (batch, rows), which rows:
    None means all. `named` has arguments of `tunefa.flash_attention_varlen`.
    """
    q, k, v = inputs
    batch, rows, keys = *q.shape[:2], k.shape[1]
    gradients = needs_gradients(inputs)
    places, starts_k = _without_padding(valid_k)
    k, v = (x.flatten(0, 1).index_select(0, places) for x in (k, v))
    if gradients:
        # Attention does not write the gradients there, and those of a mask are 0 whatever they are.
        k, v = (_zero_behind(x, starts_k) for x in (k, v))
    out: Tensor
    flat = q.flatten(0, 1)
    if valid_q is None:
        starts_q = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * rows
        out = flash_attention_varlen(flat, k, v, starts_q, starts_k, rows, keys, **named)
    else:
        places, starts_q = _without_padding(valid_q)
        flat = flat.index_select(0, places)
        if gradients:
            flat = _zero_behind(flat, starts_q)
        out = flash_attention_varlen(flat, k, v, starts_q, starts_k, rows, keys, **named)
        out = _zero_behind(out, starts_q)  # nothing was written there
        out = out.index_select(0, places.argsort())
    return out.reshape(batch, rows, *out.shape[1:])


def first(valid: Tensor) -> Tensor:
    """The places along the last axis, those of true elements first."""
    return (~valid).to(torch.int8).argsort(dim=-1, stable=True)


def needs_gradients(inputs: tuple[Tensor, ...]) -> bool:
    """Whether autograd will ask for gradients of tensors."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in inputs)


def _zero_behind(x: Tensor, starts: Tensor) -> Tensor:
    """Returns packed rows with 0 in those behind the last sequence, and in their gradients."""
    return x.masked_fill(rows_behind(x.shape[0], starts)[:, None, None], 0.0)


def _without_padding(valid: Tensor) -> tuple[Tensor, Tensor]:
    """The places of a flattened batch without its padding, which comes last, and cu_seqlens."""
    lengths = valid.sum(1).cumsum(0)
    return first(valid.flatten()), pad(lengths, (1, 0)).to(torch.int32)
