"""Attention in plain PyTorch, on any device: what kernels are compared with, and the way out where
none runs.

    out = softmax(scale * q @ k^T) @ v,     lse = log(sum(exp(scale * q @ k^T)))

With a soft-cap c, each score s = scale * q @ k^T becomes c * tanh(s / c) first. Rows are computed
in blocks, so that no seqlen_q x seqlen_k matrix of all heads ever exists. The query heads of one KV
head are stacked below each other: K and V are neither repeated nor copied.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
"""Problems in it have an output in bf16."""
_BLOCK_ELEMENTS = 2**25
"""Scores that exist at once: 128 MiB in fp32, and two or three temporaries of the same size."""


@dataclass(frozen=True)
class Problem:
    """The inputs of one attention.

    q is (batch, heads, seqlen_q, head_dim), k (batch, heads_kv, seqlen_k, head_dim) and v
    (batch, heads_kv, seqlen_k, head_dim_v), of any strides; heads is a multiple of heads_kv. Causal
    means aligned to the bottom right, as in FlashAttention from 2.1 on: row i sees keys j <= i +
    seqlen_k - seqlen_q. `window_left` leaves it so many keys before the one on this diagonal, and
    `window_right`, where it is not causal, so many beyond it; None for all. `descales` are
    what q, k and v are to be multiplied by, each fp32, (batch, heads_kv), or empty for 1: one for
    each KV head, and for the query heads that share it.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    scale: float
    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None
    """Bound of the scores' magnitude; None: they stay as they are."""
    descales: Sequence[Tensor] = ()

    @property
    def band(self) -> tuple[int | None, int | None]:
        """(left, right): keys before and beyond the diagonal that a row sees, None for all."""
        return self.window_left, 0 if self.causal else self.window_right

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def first_row(self) -> int:
        """The rows before this one see no key."""
        seqlen_q, seqlen_k = self.q.shape[2], self.k.shape[2]
        if seqlen_k == 0:
            return seqlen_q
        right = self.band[1]
        return 0 if right is None else min(seqlen_q, max(0, seqlen_q - seqlen_k - right))

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, seqlen_q, head_dim_v)."""
        batch, heads, seqlen_q, _ = self.q.shape
        return batch, heads, seqlen_q, self.v.shape[3]

    @property
    def dtype(self) -> torch.dtype:
        """What it is computed in: fp64 for fp64, fp32 for all others."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def out_dtype(self) -> torch.dtype:
        """That of q; bf16 for e4m3."""
        return out_dtype(self.q.dtype)


def out_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of the output of a problem in `dtype`."""
    return torch.bfloat16 if dtype == E4M3 else dtype


@dataclass(frozen=True)
class _Block:
    """Consecutive query rows of all heads, and the keys that any of them sees."""

    rows: slice
    keys: slice


def attention(problem: Problem, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """(out, lse) of shapes (batch, heads, seqlen_q, head_dim_v) and (batch, heads, seqlen_q).

    A row that sees no key gives out = 0 and lse = -inf. Differentiable by autograd.

    With `dtype` everything is computed and returned in it. Without, it is computed in fp32 (fp64
    for fp64 inputs) and `out` is rounded to `problem.out_dtype`.
    """
    q, made = problem.q, dtype or problem.dtype
    batch, heads, _, head_dim_v = problem.out_shape
    unseen = problem.first_row
    scale, out_scale = _scales(problem, made)
    outs = [q.new_zeros((batch, heads, unseen, head_dim_v), dtype=made)]
    lses = [q.new_full((batch, heads, unseen), float("-inf"), dtype=made)]
    with _without_autocast(q.device):
        k, v = problem.k.to(made), problem.v.to(made)
        for block in _blocks(problem):
            rows = _grouped(q[:, :, block.rows].to(made), problem.group) * scale
            scores = _scores(problem, block, rows, k)
            lse = scores.logsumexp(-1, keepdim=True)
            out = (scores - lse).exp() @ v[:, :, block.keys] * out_scale
            outs.append(_ungrouped(out, problem.group))
            lses.append(_ungrouped(lse, problem.group).squeeze(-1))
    out = torch.cat(outs, dim=2)
    return out if dtype else out.to(problem.out_dtype), torch.cat(lses, dim=2)


def _scales(problem: Problem, made: torch.dtype) -> tuple[float | Tensor, float | Tensor]:
    """What scores and outputs of grouped rows are multiplied by."""
    q, k, v = (
        descale.to(made)[:, :, None, None] if descale.numel() else 1.0
        for descale in problem.descales or [problem.q.new_empty(0)] * 3
    )
    return problem.scale * q * k, v


def gradients(
    problem: Problem, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped as q, k and v and in `problem.dtype`, from what `attention` returned.

    With P = exp(scale * q @ k^T - lse): dv = P^T @ grad_out and dS = P * (grad_out @ v^T - delta),
    where delta = rowsum(grad_out * out) - grad_lse (arXiv:2307.08691, algorithm 2; that lse has a
    gradient of its own only shifts delta, for d lse / dS = P). A soft-cap scales dS by its slope.
    """
    made, group, scale = problem.dtype, problem.group, problem.scale
    dq, dk, dv = (torch.zeros_like(x, dtype=made) for x in (problem.q, problem.k, problem.v))
    with _without_autocast(problem.q.device):
        k, v = problem.k.to(made), problem.v.to(made)
        for block in _blocks(problem):
            rows, keys = block.rows, block.keys
            grad = _grouped(grad_out[:, :, rows].to(made), group)
            delta = grad.mul(_grouped(out[:, :, rows].to(made), group)).sum(-1, keepdim=True)
            if grad_lse is not None:
                delta -= _grouped(grad_lse[:, :, rows, None].to(made), group)
            q = _grouped(problem.q[:, :, rows].to(made) * scale, group)
            s = _scores(problem, block, q, k)
            slope = _softcap_slope(problem, s)
            p = s.sub_(_grouped(lse[:, :, rows, None].to(made), group)).exp_()
            dv[:, :, keys] += p.transpose(2, 3) @ grad
            ds = (grad @ v[:, :, keys].transpose(2, 3)).sub_(delta).mul_(p)
            if slope is not None:
                ds.mul_(slope)
            dq[:, :, rows] = _ungrouped(ds @ k[:, :, keys], group) * scale
            dk[:, :, keys] += ds.transpose(2, 3) @ q
    return dq, dk, dv


def _blocks(problem: Problem) -> Iterator[_Block]:
    """The rows that see a key, so many at a time that their scores stay within the limit."""
    batch, heads, seqlen_q, _ = problem.q.shape
    seqlen_k, (left, right) = problem.k.shape[2], problem.band
    room, diagonal = _BLOCK_ELEMENTS // max(1, batch * heads), seqlen_k - seqlen_q
    step = max(1, room // max(1, seqlen_k))
    if left is not None and right is not None:  # n rows see n + left + right keys
        width = left + right
        step = max(step, (math.isqrt(width * width + 4 * room) - width) // 2)
    for start in range(problem.first_row, seqlen_q, step):
        stop = min(start + step, seqlen_q)
        first = 0 if left is None else max(0, start + diagonal - left)
        end = seqlen_k if right is None else min(seqlen_k, stop + diagonal + right)
        yield _Block(slice(start, stop), slice(first, end))


def _scores(problem: Problem, block: _Block, rows: Tensor, keys: Tensor) -> Tensor:
    """Masked scores, (batch, heads_kv, group * rows, keys), of rows grouped and scaled already."""
    scores = rows @ keys[:, :, block.keys].transpose(2, 3)
    if problem.softcap is not None:
        scores = problem.softcap * (scores / problem.softcap).tanh()
    left, right = problem.band
    device, diagonal = rows.device, problem.k.shape[2] - problem.q.shape[2]
    own_key = torch.arange(block.rows.start, block.rows.stop, device=device) + diagonal
    own_key = own_key.repeat(problem.group)[:, None]
    key = torch.arange(block.keys.start, block.keys.stop, device=device)
    if right is not None:
        scores = scores.masked_fill(key > own_key + right, float("-inf"))
    if left is not None:
        scores = scores.masked_fill(key < own_key - left, float("-inf"))
    return scores


def _softcap_slope(problem: Problem, scores: Tensor) -> Tensor | None:
    """d/ds c * tanh(s / c) = 1 - tanh(s / c)^2, from masked scores; None without a soft-cap."""
    if problem.softcap is None:
        return None
    # Hidden keys have -inf, and whatever factor for their gradient of 0 as long as it is finite.
    return 1.0 - (scores / problem.softcap).clamp_min_(-1.0).square_()


def _grouped(x: Tensor, group: int) -> Tensor:
    """(batch, heads, rows, dim) as (batch, heads_kv, group * rows, dim)."""
    batch, heads, rows, dim = x.shape
    return x.reshape(batch, heads // group, group * rows, dim)


def _ungrouped(x: Tensor, group: int) -> Tensor:
    """(batch, heads_kv, group * rows, dim) as (batch, heads, rows, dim)."""
    batch, heads_kv, rows, dim = x.shape
    return x.reshape(batch, heads_kv * group, rows // group, dim)


def _without_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Autocast would round the matrix products to its own dtype, whatever is asked for here."""
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
