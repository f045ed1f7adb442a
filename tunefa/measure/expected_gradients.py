"""The distance of gradients from the reference: over all rows, and in the worst row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.comparison import (
    ACCURACY_MARGIN,
    LEAST_NORM,
    P_ROUNDING,
    ROW_MARGIN,
    SCORE_ROUNDING,
    SOFTCAP_ROUNDING,
    SUM_ROUNDING,
    Comparison,
    Row,
    sequence_of,
)
from tunefa.measure.gradients import Gradients, Rounding, gradients_and_spreads
from tunefa.spec.workload import Workload

NAMES = ("dQ", "dK", "dV")
LEAST = {"bf16": 0.0, "fp16": 2**-25, "fp32": 0.0}
"""Half of the smallest subnormal number of the operands P and dS; fp16 alone has a narrow range."""
MARGIN = 2.0 * ROW_MARGIN
"""A row's limit is this many times what rounding makes. Hostile keys are nearly parallel, so that
the errors of a row of dQ add up in one direction like a random walk: the worst of 260,000 rows is
6 standard deviations off. On an H200 cuDNN, FlashAttention-2 and our kernels are all 1.4 to 1.7
times 2 off in such rows, and off alike in the same rows."""
SHARE_OF_NORM = 1e-5
"""A row may always be off by this share of the root mean square of all rows' norms. Keys that all
queries all but ignore have gradients of numbers that the hardware flushes to 0."""
SUMS_APART = 0.5
"""The share of a row's limit by which two launches may differ in a sum without a fixed order. Where
terms cancel, sums in fp32 in another order differ in the last bits of the rounded result."""


@dataclass(frozen=True)
class ExpectedGradients:
    """The gradients of the reference, and how far each row of them may be off.

    Rows of dQ are (batch, heads, seqlen_q), those of dK and dV (batch, heads_kv, seqlen_k); of
    packed sequences (rows, heads) and (keys, heads_kv).
    """

    workload: Workload
    grads: tuple[Tensor, ...]
    """(dq, dk, dv), fp32 or fp64."""
    limits: tuple[Tensor, ...]
    """The largest ||gradient - reference|| of each row."""
    norms: tuple[Tensor, ...]
    """||reference|| of each row."""
    judged: tuple[Tensor, ...]
    """True for the rows that are compared."""
    normal: tuple[Tensor, ...]
    """True for the rows with normal inputs, of which `Comparison.error` is."""
    inputs_of: Callable[[int, int], str]
    """Says what is special about the inputs of a head of a sequence, by (sequence, KV head)."""

    @classmethod
    def of(cls, workload: Workload, inputs: AttentionInputs, given: Gradients) -> ExpectedGradients:
        """Computes the gradients in fp64 for inputs in fp64, else in fp32, and the limits of rows.

        An error of a score counts as an error of its probability, so does one of the logsumexp.
        """
        kind = workload.dtype
        size = given.lse.abs().nan_to_num(0.0, 0.0, 0.0).amax()
        relative = P_ROUNDING[kind] + SCORE_ROUNDING[kind] * float(size)
        if inputs.softcap is not None:
            relative += SOFTCAP_ROUNDING * inputs.softcap
        rounding = Rounding(relative, SCORE_ROUNDING[kind], LEAST[kind])
        grads, spreads = gradients_and_spreads(inputs, given, rounding)
        norms = tuple(each.norm(dim=-1) for each in grads)
        margin = MARGIN * ACCURACY_MARGIN[workload.accuracy]
        limits = tuple(
            margin * (spread + SUM_ROUNDING[kind] * norm) + SHARE_OF_NORM * _typical(norm)
            for spread, norm in zip(spreads, norms, strict=True)
        )
        everything = tuple(torch.ones_like(each, dtype=torch.bool) for each in norms)
        return cls(
            workload,
            grads,
            tuple(each.clamp_min(LEAST_NORM) for each in limits),
            tuple(each.clamp_min(LEAST_NORM) for each in norms),
            everything,
            everything,
            lambda sequence, head: "",
        )

    @property
    def bytes(self) -> int:
        """Bytes of device memory."""
        held = (*self.grads, *self.limits, *self.norms, *self.judged, *self.normal)
        return sum(each.numel() * each.element_size() for each in held)

    def compare(self, *outputs: Tensor) -> Comparison:
        """Compares dq, dk and dv, of the shapes that a kernel writes. Waits for the device."""
        worst: tuple[float, Row] | None = None
        for number, off in enumerate(self._off(outputs)):
            shares = (off / self.limits[number]).nan_to_num(math.inf, math.inf)
            shares = shares.where(self.judged[number], 0.0)
            place = int(shares.argmax())
            share = float(shares.flatten()[place])
            if worst is None or share > worst[0]:
                worst = share, self._row(number, place, off)
        assert worst is not None
        overall = max(self.errors(*outputs))
        return Comparison(overall, 0.0, self.workload, row=worst[1], has_lse=False)

    def errors(self, *outputs: Tensor) -> tuple[float, ...]:
        """The errors of dq, dk and dv over all rows with normal inputs, relative to their norms;
        inf for NaN.

        Rows that are smaller than their limits are left out, as those of a query that sees one key,
        whose gradient is 0: only `compare` judges them.
        """
        found = []
        for off, norm, limit, normal in zip(
            self._off(outputs), self.norms, self.limits, self.normal, strict=True
        ):
            counted = normal & (norm >= limit)
            size = norm.where(counted, 0.0).norm().clamp_min(LEAST_NORM)
            error = off.where(counted, 0.0).norm() / size
            found.append(float(error.nan_to_num(math.inf, math.inf)))
        return tuple(found)

    def error(self, *outputs: Tensor) -> float:
        """The largest of `errors`."""
        return max(self.errors(*outputs))

    def agree(self, name: str, first: Tensor, second: Tensor) -> bool:
        """Whether two launches wrote the same sums into an output, `dq` for example, but for the
        order of their terms; rows that are not judged are left out."""
        number = [each.lower() for each in NAMES].index(name)
        off = (first.to(self.grads[number].dtype) - second).norm(dim=-1)
        within = off <= SUMS_APART * self.limits[number]  # false for NaN
        return bool((within | ~self.judged[number]).all())

    def _off(self, outputs: tuple[Tensor, ...]) -> Iterator[Tensor]:
        """||gradient - reference|| of each row of each gradient."""
        for out, right in zip(outputs, self.grads, strict=True):
            yield (out.to(right.dtype) - right).norm(dim=-1)

    def _row(self, number: int, place: int, off: Tensor) -> Row:
        """The row with that index of the gradient with that number."""
        relative = (off / self.norms[number]).nan_to_num(math.inf, math.inf)
        limit = self.limits[number] / self.norms[number]
        first, *rest = (int(i) for i in torch.unravel_index(torch.tensor(place), off.shape))
        if self.workload.varlen:
            sequence, row = sequence_of(self.workload, first, of_keys=number > 0)
            head = rest[0]
            where = f"row {row} of head {head} in sequence {sequence}"
        else:
            sequence, (head, row) = first, rest
            where = f"row {row} of head {head} in batch {sequence}"
        head_kv = head // self.workload.group if number == 0 else head
        return Row(
            NAMES[number],
            where,
            float(relative.flatten()[place]),
            float(limit.flatten()[place]),
            self.inputs_of(sequence, head_kv),
        )


def _typical(norms: Tensor) -> Tensor:
    """The root mean square of norms that are no NaN."""
    made: Tensor = norms.square().nanmean().sqrt()
    return made
