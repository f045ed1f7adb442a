"""The distance of outputs from the reference: over all rows, in the worst row, in the logsumexp.

A row is one query of one head. A norm over all rows hides a single wrong row, so each row has a
limit of its own as well. NaN never passes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from tunefa.spec.workload import Workload

if TYPE_CHECKING:  # they import PyTorch, which takes seconds
    import torch
    from torch import Tensor

    from tunefa.measure.attention_inputs import AttentionInputs

TOLERANCE = {"bf16": 8e-3, "fp16": 1e-3, "fp32": 2e-5, "e4m3": 6e-2}
"""Largest relative error over all rows by dtype: two to three times what rounding alone makes.

P and the output are rounded to the dtype. Half a unit in the last place is 2^-9 for bf16 (2e-3) and
2^-12 for fp16 (2.4e-4); for fp32 (2^-24) the order of summation dominates. In e4m3, P has a
relative error of up to 2^-4, 2.6e-2 in the root mean square over mantissas. V has random signs, so
the output has the same relative error."""
P_ROUNDING = {"bf16": 2**-9, "fp16": 2**-12, "fp32": 5e-6, "e4m3": 2**-4}
"""Largest relative error of a probability: half a unit in the last place; for fp32 the order of
summation. The errors of a row's probabilities are independent, see `Expected.of`."""
SUM_ROUNDING = {"bf16": 2**-9, "fp16": 2**-12, "fp32": 5e-6, "e4m3": 1e-2}
"""Largest relative error of a row's output beside that of P: half a unit in the last place; for
e4m3 the sums of Hopper's tensor cores. Where V is positive and has 16k keys, kernels that start a
new sum every few hundred keys are up to 6.5e-3 off on an H200, and kernels that do not 0.25."""
CAPPED_ROUNDING = {"bf16": 0.0, "fp16": 0.0, "fp32": 0.0, "e4m3": 2**-5}
"""The error that a soft-cap adds to SUM_ROUNDING. Many scores are near the cap, so that many
probabilities are nearly equal, and are rounded alike: by up to half of the 2^-4 between e4m3
numbers below 1. On an H200 such rows of positive V are up to 4.5e-2 off. In the other dtypes this
is within the margin."""
SCORE_ROUNDING = {"bf16": 2**-20, "fp16": 2**-20, "fp32": 2**-20, "e4m3": 2**-11}
"""Error of a score, relative to its size: sums in fp32, or in about 14 bits for e4m3
(DeepSeek-V3, arXiv:2412.19437, section 3.5.2). A probability has it as its relative error."""
SOFTCAP_ROUNDING = 2**-11
"""Error of the hardware's tanh (PTX ISA, tanh.approx.f32), relative to the soft-cap."""
ROW_MARGIN = 2.0
"""A row's limit is this many times what rounding makes: rows of few keys have lucky and unlucky
errors, and two roundings may add up."""
LSE_TOLERANCE = 1e-3
"""Largest absolute error of the logsumexp, which every dtype but e4m3 sums in full fp32."""
E4M3_LSE_TOLERANCE = 2e-2
"""Largest absolute error of a logsumexp up to 8 in e4m3, and in proportion beyond.

A sum of 14 bits is truncated at every instruction, of 32 products each (PTX ISA, wgmma: K is 32),
by up to 2^-13 of its largest term. With head_dim 256 these are 8 truncations, 2^-10 of a score, and
terms of both signs may be larger than their sum. On an H200, right kernels are off by up to 1.2e-2
at a logsumexp below 8 with head_dim 256, and by 1.6e-3 times the logsumexp where scores have
outliers."""
FAST_SUMS = 2**-19, 2**-4
"""The error of a sum in e4m3 that the tensor cores alone add up, for each key, and at most; of the
limits for the accuracy `fast`, which are 16 times as large. On an H200, where V is positive, 16,384
keys give an error of 0.26, and 4,096 of 0.076, in tunefa, FlashAttention-3 and cuDNN alike."""
ACCURACY_MARGIN = {"standard": 1.0, "fast": 8.0}
"""By the accuracy that a workload asks for, the factor of all limits. `fast` gives away three bits,
so that P, or its exponential, may be computed with three bits less."""
LEAST_NORM = 1e-30
"""Keeps rows without a key, whose output is 0, from a division by 0."""


def _sum_rounding(workload: Workload) -> float:
    """Returns the error of a sum over all keys, relative to its terms."""
    exact: float = SUM_ROUNDING[workload.dtype]
    if workload.dtype != "e4m3" or workload.accuracy != "fast":
        return exact
    of_key, most = FAST_SUMS
    return max(exact, min(of_key * workload.seqlen_k, most))


@dataclass(frozen=True)
class Row:
    """The row that is furthest beyond its limit, or nearest to it."""

    of: str
    """The output that is furthest off: `output`, `logsumexp`, or a gradient, such as `dQ`."""
    place: str
    """`row 17 of head 3 in batch 1`."""
    error: float
    """Relative to the norm of the reference's row; absolute for a logsumexp; inf for NaN."""
    limit: float
    """The largest error that passes in that row."""
    inputs: str = ""
    """The row's patterns in words; empty for inputs that are normal."""

    def __str__(self) -> str:
        """`the output of row 17 of head 3 in batch 1 is off by 5.0e-01 (limit 8e-03), ...`."""
        off = f"off by {self.error:.1e} (limit {self.limit:.0e})"
        if math.isinf(self.error):
            off = "NaN or infinite (not written, overflowed, or it read the NaN beside the inputs)"
        special = f", where {self.inputs}" if self.inputs else ""
        return f"the {self.of} of {self.place} is {off}{special}"


@dataclass(frozen=True)
class Comparison:
    """The errors of one kernel's outputs on one shape, and whether they pass."""

    error: float
    """||out - reference|| / ||reference|| over the rows with normal inputs, or NaN."""
    lse_error: float
    """Largest |lse - reference|; rows without a key must agree in being -inf."""
    workload: Workload
    """The shape that was compared."""
    limit: float | None = None
    """The largest `error` that passes; None stands for the tolerance of the workload's dtype."""
    repeatable: bool = True
    """Whether a second launch wrote the same bits. If not, the kernel has a race condition."""
    row: Row | None = None
    """The worst row; None if rows were not judged."""
    strayed: bool = False
    """Whether the kernel wrote to memory outside of its outputs."""
    has_lse: bool = True
    """Whether there is a logsumexp; `lse_error` is 0 where there is none."""

    @property
    def passed(self) -> bool:
        """Whether all errors are within their limits, and nothing else was written."""
        return self.error <= self._limit and self._rows_passed and not self.strayed

    @property
    def _rows_passed(self) -> bool:
        return self.row is None or self.row.error <= self.row.limit

    @property
    def _limit(self) -> float:
        if self.limit is not None:
            return self.limit
        return TOLERANCE[self.workload.dtype] * ACCURACY_MARGIN[self.workload.accuracy]

    @property
    def reason(self) -> str:
        """The reason, in one sentence, that the comparison failed and the trial is `wrong`."""
        if self.strayed:
            return f"it writes to memory outside of its outputs on {self.workload}"
        if not self.repeatable:
            return f"two launches on the same inputs differ on {self.workload}: a race condition"
        limit = "" if math.isinf(self._limit) else f" (limit {self._limit:.0e})"
        lse = f", logsumexp off by {self.lse_error:.2e}," if self.has_lse else ""
        overall = f"error {self.error:.2e} over all rows{limit}{lse} on {self.workload}"
        # Reports cut off what is long, so the row comes first.
        return overall if self._rows_passed else f"{self.row}; {overall}"


def lse_tolerance(workload: Workload) -> float:
    """The largest absolute error of a small logsumexp."""
    least = E4M3_LSE_TOLERANCE if workload.dtype == "e4m3" else LSE_TOLERANCE
    return least * ACCURACY_MARGIN[workload.accuracy]


@dataclass(frozen=True)
class Expected:
    """The outputs of the reference, and how far each row may be from them.

    Rows are (batch, heads, seqlen_q), or (heads, rows) of packed sequences.
    """

    workload: Workload
    out: Tensor
    """(*rows, head_dim_v), fp32 or fp64."""
    lse: Tensor
    """The logsumexp of each row, in the same dtype."""
    limits: Tensor
    """The largest ||out - reference|| of each row."""
    norms: Tensor
    """||reference|| of each row."""
    judged: Tensor | None = None
    """True for the rows that are compared; None for all."""
    normal: Tensor | None = None
    """True for the rows with normal inputs, of which `Comparison.error` is; None for all."""
    inputs_of: Callable[[tuple[int, ...]], str] = lambda row: ""
    """Says what is special about the inputs of a row, whose indices it takes."""

    @classmethod
    def of(cls, workload: Workload, inputs: AttentionInputs, dtype: torch.dtype) -> Expected:
        """Computes the reference in `dtype`, and the limits of its rows.

        The rounding of probability p_j has the relative error e_j, |e_j| <= P_ROUNDING, and moves
        the output by e_j p_j v_j. As the e_j are independent, they move it by about P_ROUNDING *
        sqrt(sum of p_j^2 ||v_j||^2). The rest is relative to the output. A score's error counts as
        an error of its probability.
        """
        from tunefa.measure import reference

        out, lse, spread = reference.attention_and_spread(inputs, dtype)
        if workload.is_packed:
            out = out.transpose(0, 1)
        return cls.from_reference(workload, (out, lse, spread), inputs.softcap)

    @classmethod
    def from_reference(
        cls, workload: Workload, found: tuple[Tensor, Tensor, Tensor], softcap: float | None
    ) -> Expected:
        """Computes the limits of rows, as `of` does, from (out, lse, spread) of the reference."""
        out, lse, spread = found
        kind, size = workload.dtype, lse.abs().nan_to_num(0.0, 0.0, 0.0)
        of_p = P_ROUNDING[kind] + SCORE_ROUNDING[kind] * size
        if workload.softcap and softcap is not None:
            of_p = of_p + SOFTCAP_ROUNDING * softcap
        norms = out.norm(dim=-1)
        of_sums = _sum_rounding(workload) + (CAPPED_ROUNDING[kind] if workload.softcap else 0.0)
        limits = of_p * spread + of_sums * norms
        limits = ROW_MARGIN * ACCURACY_MARGIN[workload.accuracy] * limits
        return cls(workload, out, lse, limits.clamp_min(LEAST_NORM), norms.clamp_min(LEAST_NORM))

    @property
    def bytes(self) -> int:
        """Bytes of device memory: the output, and three numbers for each row."""
        return sum(each.numel() * each.element_size() for each in (self.out, *[self.lse] * 3))

    def compare(self, *outputs: Tensor) -> Comparison:
        """Compares an output and a logsumexp, of the shapes that a kernel writes. Waits for the
        device once."""
        import torch

        out, lse = outputs
        off = self._off(out)
        off_lse = (lse.to(self.lse.dtype) - self.lse).abs()
        both_empty = torch.isneginf(lse) & torch.isneginf(self.lse)
        off_lse = off_lse.masked_fill(both_empty, 0.0)
        lse_limits = self._lse_limits()
        shares = _or_inf(torch.stack([off / self.limits, off_lse / lse_limits]))
        off_lse = _or_inf(off_lse)
        if self.judged is not None:
            shares, off_lse = (each.where(self.judged, 0.0) for each in (shares, off_lse))
        place = shares.flatten().argmax()
        errors = _or_inf(torch.stack([off / self.norms, off_lse]))
        limits = torch.stack([self.limits / self.norms, lse_limits])
        chosen = [each.flatten()[place].double() for each in (errors, limits)]
        found = torch.stack([place.double(), *chosen, self._error(off), off_lse.max().double()])
        index, error, limit, overall, lse_error = found.tolist()
        row = self._row(int(index), error, limit)
        return Comparison(overall, lse_error, self.workload, row=row)

    def _lse_limits(self) -> Tensor:
        """The largest absolute error of each row's logsumexp."""
        limits = self.lse.abs().nan_to_num(0.0, 0.0, 0.0) / 8.0
        if self.workload.dtype != "e4m3":
            limits = limits * 0.0
        return limits.clamp_min(1.0) * lse_tolerance(self.workload)

    def error(self, out: Tensor) -> float:
        """The relative error of an output over all rows with normal inputs."""
        return float(self._error(self._off(out)))

    def _off(self, out: Tensor) -> Tensor:
        """||out - reference|| of each row."""
        if self.workload.is_packed:
            out = out.transpose(0, 1)
        off: Tensor = (out.to(self.out.dtype) - self.out).norm(dim=-1)
        return off

    def _error(self, off: Tensor) -> Tensor:
        """The relative error over all rows with normal inputs."""
        norms = self.norms
        if self.normal is not None:
            off, norms = (each.where(self.normal, 0.0) for each in (off, norms))
        error: Tensor = off.norm() / norms.norm().clamp_min(LEAST_NORM)
        return error.double()

    def _row(self, index: int, error: float, limit: float) -> Row:
        """The row with that index among all rows of the output, then of the logsumexp."""
        sizes, rest = self.lse.shape, index % self.lse.numel()
        place: list[int] = []
        for size in reversed(sizes):
            rest, last = divmod(rest, size)
            place.insert(0, last)
        kind: Literal["output", "logsumexp"] = "output" if index < self.lse.numel() else "logsumexp"
        return Row(kind, self._named(place), error, limit, self.inputs_of(tuple(place)))

    def _named(self, place: list[int]) -> str:
        """`row 17 of head 3 in batch 1`, or `... in sequence 1`, whose rows count from its own."""
        if not self.workload.is_packed:
            batch, head, row = place
            return f"row {row} of head {head} in batch {batch}"
        head, row = place
        sequence, row = sequence_of(self.workload, row)
        return f"row {row} of head {head} in sequence {sequence}"


def sequence_of(workload: Workload, row: int, of_keys: bool = False) -> tuple[int, int]:
    """The packed sequence of a query row, or of a key, and its number there."""
    ends = [*accumulate(lengths[of_keys] for lengths in workload.lengths)]
    sequence = bisect_right(ends, row)
    return sequence, row - (ends[sequence - 1] if sequence else 0)


def _or_inf(errors: Tensor) -> Tensor:
    """The errors, with inf for NaN."""
    return errors.nan_to_num(math.inf, math.inf)
