"""The verdict on an output of attention: how far it is from the result in fp64.

Peers return no logsumexp, and their inputs are normal, so this is less than the check of a config
(`tunefa.measure.comparison`): one norm over all rows, and one for each row, because the norm over
all rows hides a single wrong one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tunefa.measure import check, reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.comparison import ACCURACY_MARGIN, TOLERANCE
from tunefa.measure.peer import Tensors
from tunefa.spec.workload import Workload

FACTOR = 2.0
"""The limit over all rows, as a multiple of TOLERANCE: attention in PyTorch's operators rounds its
scores to the dtype as well, which alone makes an error of 5.4e-3 in bf16."""
ROW_FACTOR = 8.0
"""The limit of a row's error, as a multiple of the limit over all rows. Rows of few keys have lucky
and unlucky roundings; a row that is not computed, or is masked wrongly at few keys, is off by about
1."""


@dataclass(frozen=True)
class Verdict:
    """The errors of one output, and whether they pass."""

    error: float
    """||out - exact|| / ||exact|| over the rows that are compared; NaN where the output has one."""
    worst_row: float
    """The largest such error of one row."""
    limit: float
    """The largest `error` that passes."""

    @property
    def why_wrong(self) -> str | None:
        """Says in one sentence why the output is wrong; None if it passes."""
        if self.error != self.error or self.worst_row != self.worst_row:
            return "its output has NaN"
        if self.error > self.limit:
            return f"its relative error is {self.error:.1e} (limit {self.limit:.0e})"
        limit = ROW_FACTOR * self.limit
        if self.worst_row > limit:
            return f"a row has a relative error of {self.worst_row:.1e} (limit {limit:.0e})"
        return None


@dataclass(frozen=True)
class Truth:
    """The exact output of some heads: of the first sequence, or of all packed ones."""

    exact: Tensor
    """fp64, of the shape of `part` of an output."""
    part: tuple[slice, slice]
    shape: tuple[int, ...]
    """The shape of a whole output."""
    dtype: torch.dtype
    """The dtype of a whole output."""
    limit: float

    @classmethod
    def of(cls, workload: Workload, tensors: Tensors) -> Truth:
        """Computes the exact output for two groups of query heads, or for the only one."""
        q, k, v, *more = tensors
        heads = min(workload.heads, 2 * workload.group)
        heads_kv = heads // workload.group
        extra: dict[str, Any] = {}
        if workload.varlen:
            first, extra["cu_seqlens"] = slice(None), (more[0], more[1])
        else:
            first, extra["descales"] = slice(1), [each[:1, :heads_kv] for each in more]
        inputs = AttentionInputs(
            *(q[first, :heads], k[first, :heads_kv], v[first, :heads_kv]),
            *(workload.causal, workload.head_dim**-0.5),
            *(workload.window_left, workload.window_right),
            softcap=check.softcap(workload),
            **extra,
        )
        exact, _ = reference.attention(inputs, torch.float64)
        limit = FACTOR * TOLERANCE[workload.dtype] * ACCURACY_MARGIN[workload.accuracy]
        shape = (*q.shape[:-1], workload.head_dim_v)
        return cls(exact, (first, slice(heads)), shape, inputs.out_dtype, limit)

    def spoil(self) -> None:
        """Leaves NaN in the memory that the next output is likely to get.

        Otherwise a contestant that writes nothing could return the output of the one before.
        """
        torch.full(self.shape, float("nan"), dtype=self.dtype, device=self.exact.device)

    def verdict(self, out: Tensor) -> Verdict:
        """Compares a whole output. Raises ValueError for one of another shape."""
        if tuple(out.shape) != self.shape:
            raise ValueError(f"its output has the shape {tuple(out.shape)}, not {self.shape}")
        difference = (out[self.part].double() - self.exact).norm(dim=-1)
        sizes = self.exact.norm(dim=-1)
        # A row that sees no key is 0, and must be 0.
        rows = torch.where(difference == 0, difference, difference / sizes)
        error, worst = difference.norm() / sizes.norm(), rows.max()
        return Verdict(float(error), float(worst), self.limit)
