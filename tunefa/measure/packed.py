"""Attention over packed sequences in plain PyTorch, one after the other: what kernels are compared
with, and the way out where none runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.measure import reference
from tunefa.measure.reference import Problem


@dataclass(frozen=True)
class Packed:
    """The inputs of an attention for each of some sequences, whose rows follow one another.

    q is (rows, heads, head_dim), k (keys, heads_kv, head_dim) and v (keys, heads_kv, head_dim_v).
    Sequence i has the rows cu_seqlens_q[i] to cu_seqlens_q[i + 1] of q, and the like of k and v;
    both are (batch + 1,). Mask, scale and soft-cap are those of `Problem`, for each by itself.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    causal: bool
    scale: float
    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None

    @property
    def out_shape(self) -> tuple[int, int, int]:
        """(rows, heads, head_dim_v)."""
        return self.q.shape[0], self.q.shape[1], self.v.shape[2]

    @property
    def dtype(self) -> torch.dtype:
        """What it is computed in: fp32 for bf16, fp16 and fp32, fp64 for fp64."""
        return torch.promote_types(self.q.dtype, torch.float32)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: no row, or no key for any row."""
        return 0 in self.out_shape or self.k.shape[0] == 0 or self.cu_seqlens_q.shape[0] < 2

    def sequences(self) -> Iterator[tuple[slice, slice, Problem]]:
        """The rows and keys of each sequence, and its problem of one batch.

        Waits for the device. Raises TunefaError for sequences that are not within q, k and v.
        """
        if self.empty:
            return
        mask = self.window_left, self.window_right, self.softcap
        starts_q = _starts("cu_seqlens_q", self.cu_seqlens_q, "q", self.q)
        starts_k = _starts("cu_seqlens_k", self.cu_seqlens_k, "k", self.k)
        for i in range(len(starts_q) - 1):
            rows, keys = slice(*starts_q[i : i + 2]), slice(*starts_k[i : i + 2])
            q, k, v = (heads_first(x) for x in (self.q[rows], self.k[keys], self.v[keys]))
            yield rows, keys, Problem(q, k, v, self.causal, self.scale, *mask)


def attention(packed: Packed, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """(out, lse) of shapes (rows, heads, head_dim_v) and (heads, rows); see `reference.attention`.

    Rows of no sequence are as those that see no key. Raises TunefaError as `sequences` does.
    """
    rows, heads, head_dim_v = packed.out_shape
    out = packed.q.new_zeros((rows, heads, head_dim_v), dtype=dtype or packed.q.dtype)
    lse = packed.q.new_full((heads, rows), float("-inf"), dtype=dtype or packed.dtype)
    for place, _, problem in packed.sequences():
        made, made_lse = reference.attention(problem, dtype)
        out[place] = made[0].transpose(0, 1)
        lse[:, place] = made_lse[0]
    return out, lse


def gradients(
    packed: Packed, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv), shaped as q, k and v and in `packed.dtype`, from what `attention` returned."""
    made = packed.dtype
    dq, dk, dv = (torch.zeros_like(x, dtype=made) for x in (packed.q, packed.k, packed.v))
    for rows, keys, problem in packed.sequences():
        found = reference.gradients(
            problem,
            heads_first(out[rows]),
            lse[None, :, rows],
            heads_first(grad_out[rows]),
            None if grad_lse is None else grad_lse[None, :, rows],
        )
        for grad, part, place in zip((dq, dk, dv), found, (rows, keys, keys), strict=True):
            grad[place] = part[0].transpose(0, 1)
    return dq, dk, dv


def heads_first(rows: Tensor) -> Tensor:
    """(rows, heads, head_dim) of one sequence as a (1, heads, rows, head_dim) view."""
    return rows.transpose(0, 1)[None]


def _starts(name: str, cu_seqlens: Tensor, of: str, tensor: Tensor) -> list[int]:
    starts: list[int] = cu_seqlens.tolist()
    if starts != sorted(starts) or starts[0] < 0 or starts[-1] > tensor.shape[0]:
        raise TunefaError(
            f"{name} is {starts}: give row numbers of {of} from 0 to {tensor.shape[0]} that never "
            f"fall, the cumulated lengths of the sequences"
        )
    return starts
