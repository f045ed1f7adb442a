"""Attention in plain PyTorch, on any device. Kernels are compared with it, and it serves the calls
that no kernel serves.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

With a soft-cap c, each score s = scale * q @ k^T becomes c * tanh(s / c) first. Rows are computed
in blocks, so that no seqlen_q x seqlen_k matrix of all heads ever exists. The query heads of one KV
head are stacked below each other: K and V are neither repeated nor copied. Packed sequences are
computed one after the other.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tunefa.measure.attention_inputs import AttentionInputs

_BLOCK_ELEMENTS = {"cpu": 2**22}
"""Scores that are in memory at once, by device: 16 MiB in fp32, which stay in the caches. On two
cores, 4,096 causal tokens with a soft-cap take 0.5 s with 2^22 and 1.7 s with 2^25."""
_MOST_BLOCK_ELEMENTS = 2**25
"""Scores on other devices: 128 MiB in fp32, beside two or three temporaries as large."""


@dataclass(frozen=True)
class Block:
    """Consecutive query rows of all heads, and the keys that any of them sees."""

    rows: slice
    keys: slice


def attention(inputs: AttentionInputs, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Returns (out, lse), of the shapes `inputs.out_shape` and `inputs.lse_shape`.

    A row that sees no key, or belongs to no packed sequence, has out = 0 and lse = -inf. Autograd
    can differentiate it where the inputs are dense.

    With `dtype`, everything is computed and returned in that dtype. Without, everything is computed
    in fp32 (fp64 for fp64 inputs) and `out` is rounded to `inputs.out_dtype`. Raises TunefaError
    for packed sequences that are not within q, k and v.
    """
    out, lse, _ = _attention(inputs, dtype, with_spread=False)
    return out, lse


def attention_and_spread(
    inputs: AttentionInputs, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (out, lse, spread): how far independent errors of the probabilities move a row.

    With p_j the probabilities of a row and v_j the values, its spread is sqrt(sum of p_j^2
    ||v_j||^2), of the shape of lse, and 0 for a row that sees no key. A relative error e of each
    p_j, with random signs, moves the row of out by about e times that. Everything is computed in
    `dtype`. Raises TunefaError as `attention` does.
    """
    return _attention(inputs, dtype, with_spread=True)


def _attention(
    inputs: AttentionInputs, dtype: torch.dtype | None, with_spread: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`attention_and_spread`, or with a spread of 0."""
    if inputs.cu_seqlens is None:
        return _dense_attention(inputs, dtype, with_spread)
    out = inputs.q.new_zeros(inputs.out_shape, dtype=dtype or inputs.out_dtype)
    lse = inputs.q.new_full(inputs.lse_shape, float("-inf"), dtype=dtype or inputs.dtype)
    spread = torch.zeros_like(lse)
    for rows, _, one in inputs.sequences():
        made, made_lse, made_spread = _dense_attention(one, dtype, with_spread)
        out[rows] = made[0].transpose(0, 1)
        lse[:, rows], spread[:, rows] = made_lse[0], made_spread[0]
    return out, lse, spread


def _dense_attention(
    inputs: AttentionInputs, dtype: torch.dtype | None, with_spread: bool
) -> tuple[Tensor, Tensor, Tensor]:
    q, made, group = inputs.q, dtype or inputs.dtype, inputs.group
    batch, heads, _, head_dim_v = inputs.out_shape
    unseen = inputs.first_row
    scale, out_scale = _scales(inputs, made)
    outs = [q.new_zeros((batch, heads, unseen, head_dim_v), dtype=made)]
    lses = [q.new_full((batch, heads, unseen), float("-inf"), dtype=made)]
    spreads = [q.new_zeros((batch, heads, unseen), dtype=made)]
    with without_autocast(q.device):
        k, v = inputs.k.to(made), inputs.v.to(made)
        v_norms = v.norm(dim=-1, keepdim=True) if with_spread else None
        for block in blocks(inputs):
            rows = grouped(q[:, :, block.rows].to(made), group) * scale
            scores = scores_of(inputs, block, rows, k)
            lse = scores.logsumexp(-1, keepdim=True)
            p = (scores - lse).exp()
            outs.append(ungrouped(p @ v[:, :, block.keys] * out_scale, group))
            lses.append(ungrouped(lse, group).squeeze(-1))
            if v_norms is not None:
                squares = p.square_() @ v_norms[:, :, block.keys].square() * out_scale**2
                spreads.append(ungrouped(squares, group).squeeze(-1).sqrt())
    out = torch.cat(outs, dim=2)
    lse = torch.cat(lses, dim=2)
    spread = torch.cat(spreads, dim=2) if with_spread else torch.zeros_like(lse)
    return out if dtype else out.to(inputs.out_dtype), lse, spread


def _scales(inputs: AttentionInputs, made: torch.dtype) -> tuple[float | Tensor, float | Tensor]:
    """Returns the factors of scores and of outputs of grouped rows: the scale and the descales."""
    q, k, v = (
        descale.to(made)[:, :, None, None] if descale.numel() else 1.0
        for descale in inputs.descales or [inputs.q.new_empty(0)] * 3
    )
    return inputs.scale * q * k, v


def blocks(inputs: AttentionInputs) -> Iterator[Block]:
    """Yields the rows that see a key, in blocks whose scores stay within the device's limit."""
    batch, heads, seqlen_q, _ = inputs.q.shape
    seqlen_k, (left, right) = inputs.k.shape[2], inputs.band
    block = _BLOCK_ELEMENTS.get(inputs.q.device.type, _MOST_BLOCK_ELEMENTS)
    room, diagonal = block // max(1, batch * heads), seqlen_k - seqlen_q
    step = max(1, room // max(1, seqlen_k))
    if left is not None and right is not None:  # n rows see n + left + right keys
        width = left + right
        step = max(step, (math.isqrt(width * width + 4 * room) - width) // 2)
    for start in range(inputs.first_row, seqlen_q, step):
        stop = min(start + step, seqlen_q)
        first = 0 if left is None else max(0, start + diagonal - left)
        end = seqlen_k if right is None else min(seqlen_k, stop + diagonal + right)
        yield Block(slice(start, stop), slice(first, end))


def scores_of(inputs: AttentionInputs, block: Block, rows: Tensor, keys: Tensor) -> Tensor:
    """The masked scores, (batch, heads_kv, group * rows, keys); `rows` are grouped and scaled."""
    scores = rows @ keys[:, :, block.keys].transpose(2, 3)
    if inputs.softcap is not None:
        scores = inputs.softcap * (scores / inputs.softcap).tanh()
    left, right = inputs.band
    device, diagonal = rows.device, inputs.k.shape[2] - inputs.q.shape[2]
    own_key = torch.arange(block.rows.start, block.rows.stop, device=device) + diagonal
    own_key = own_key.repeat(inputs.group)[:, None]
    key = torch.arange(block.keys.start, block.keys.stop, device=device)
    if right is not None:
        scores = scores.masked_fill(key > own_key + right, float("-inf"))
    if left is not None:
        scores = scores.masked_fill(key < own_key - left, float("-inf"))
    return scores


def grouped(x: Tensor, group: int) -> Tensor:
    """Stacks query heads: (batch, heads, rows, dim) to (batch, heads_kv, group * rows, dim)."""
    batch, heads, rows, dim = x.shape
    return x.reshape(batch, heads // group, group * rows, dim)


def ungrouped(x: Tensor, group: int) -> Tensor:
    """Undoes `grouped`: (batch, heads_kv, group * rows, dim) to (batch, heads, rows, dim)."""
    batch, heads_kv, rows, dim = x.shape
    return x.reshape(batch, heads_kv * group, rows // group, dim)


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Turns autocast off, which would round the matrix products to a dtype of its own."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
