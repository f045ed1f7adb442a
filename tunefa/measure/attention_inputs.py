"""The inputs of one attention, dense or packed, for kernels and for the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tunefa.errors import TunefaError

E4M3 = torch.float8_e4m3fn
"""The 8-bit dtype of q, k and v; the output of attention in it is bf16."""


def as_indexed(tensor: Tensor) -> Tensor:
    """Returns a view that PyTorch can index: e4m3 numbers as bytes, others as they are."""
    return tensor.view(torch.uint8) if tensor.dtype == E4M3 else tensor


def shares_rows(k: Tensor, v: Tensor) -> bool:
    """Whether the rows of v begin where those of k do, in the same memory. An axis of size 1 may
    have any stride."""
    if k.data_ptr() != v.data_ptr() or k.dim() != v.dim():
        return False
    steps = zip(k.shape, k.stride(), v.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in steps)


@dataclass(frozen=True)
class AttentionInputs:
    """The tensors of one attention, its mask and its scale.

    Dense: q is (batch, heads, seqlen_q, head_dim), k (batch, heads_kv, seqlen_k, head_dim) and v
    (batch, heads_kv, seqlen_k, head_dim_v), of any strides; heads is a multiple of heads_kv.

    Packed, where `cu_seqlens` is given: the sequences follow one another without padding. q is
    (rows, heads, head_dim), k (keys, heads_kv, head_dim) and v (keys, heads_kv, head_dim_v).
    Sequence i has the rows cu_seqlens[0][i] to cu_seqlens[0][i + 1] of q and the keys
    cu_seqlens[1][i] to cu_seqlens[1][i + 1]; both tensors are (batch + 1,).

    The mask is aligned to the bottom right, as in FlashAttention from 2.1 on: the diagonal of row i
    is key i + seqlen_k - seqlen_q. Causal rows see no key beyond it. `window_left` is how many keys
    before the diagonal a row sees, `window_right` how many beyond it; None for all.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    scale: float
    window_left: int | None = None
    window_right: int | None = None
    softcap: float | None = None
    """The bound of the scores' magnitude; None leaves the scores as they are."""
    descales: Sequence[Tensor] = ()
    """The factors of q, k and v: fp32 tensors, (batch, heads_kv), or empty tensors for 1."""
    cu_seqlens: tuple[Tensor, Tensor] | None = None
    """The cumulative lengths of packed queries and keys; None where the inputs are dense."""

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
        """The first row of dense inputs that sees a key: rows before it see none."""
        seqlen_q, seqlen_k = self.q.shape[2], self.k.shape[2]
        if seqlen_k == 0:
            return seqlen_q
        right = self.band[1]
        return 0 if right is None else min(seqlen_q, max(0, seqlen_q - seqlen_k - right))

    @property
    def out_shape(self) -> tuple[int, ...]:
        """(batch, heads, seqlen_q, head_dim_v), or packed (rows, heads, head_dim_v)."""
        return *self.q.shape[:-1], self.v.shape[-1]

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """(batch, heads, seqlen_q), or packed (heads, rows)."""
        if self.cu_seqlens is None:
            return tuple(self.q.shape[:3])
        return self.q.shape[1], self.q.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the reference computes in: fp64 for fp64, fp32 for all others."""
        return torch.float64 if self.q.dtype == torch.float64 else torch.float32

    @property
    def out_dtype(self) -> torch.dtype:
        """The dtype of q; bf16 for e4m3."""
        return out_dtype(self.q.dtype)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: no row, or no key for any row."""
        if self.cu_seqlens is None:
            return 0 in self.out_shape or self.k.shape[2] == 0
        return 0 in self.out_shape or self.k.shape[0] == 0 or self.cu_seqlens[0].shape[0] < 2

    def sequences(self) -> Iterator[tuple[slice, slice, AttentionInputs]]:
        """Yields the rows and keys of each packed sequence, and its inputs as a dense batch of one.

        Waits for the device. Raises TunefaError for sequences that are not within q, k and v.
        """
        if self.empty or self.cu_seqlens is None:
            return
        starts_q = _starts("cu_seqlens_q", self.cu_seqlens[0], "q", self.q)
        starts_k = _starts("cu_seqlens_k", self.cu_seqlens[1], "k", self.k)
        mask = self.window_left, self.window_right, self.softcap
        for i in range(len(starts_q) - 1):
            rows, keys = slice(*starts_q[i : i + 2]), slice(*starts_k[i : i + 2])
            q, k, v = (batch_of_one(x) for x in (self.q[rows], self.k[keys], self.v[keys]))
            yield rows, keys, AttentionInputs(q, k, v, self.causal, self.scale, *mask)


def out_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the output of an attention in `dtype`."""
    return torch.bfloat16 if dtype == E4M3 else dtype


def batch_of_one(rows: Tensor) -> Tensor:
    """(rows, heads, head_dim) of one sequence as a (1, heads, rows, head_dim) view."""
    return rows.transpose(0, 1)[None]


def _starts(name: str, cu_seqlens: Tensor, of: str, tensor: Tensor) -> list[int]:
    starts: list[int] = cu_seqlens.tolist()
    if starts != sorted(starts) or starts[0] < 0 or starts[-1] > tensor.shape[0]:
        raise TunefaError(
            f"{name} is {starts}: give cumulative lengths, which never decrease, as row numbers of "
            f"{of} from 0 to {tensor.shape[0]}"
        )
    return starts
