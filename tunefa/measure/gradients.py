"""The gradients of attention in plain PyTorch, on any device. Backward kernels are compared with
them, and they serve the calls that no backward kernel serves.

With P = exp(scale * q @ k^T - lse), dv = P^T @ grad_out and dS = P * (grad_out @ v^T - delta),
where delta = rowsum(grad_out * out) - grad_lse (FlashAttention-2, arXiv:2307.08691, algorithm 2; as
d lse / dS = P, a gradient of lse only shifts delta). Then dq = scale * dS @ k, and dk = scale *
dS^T @ q. A soft-cap scales dS by its slope.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs, batch_of_one
from tunefa.measure.reference import grouped, ungrouped

Three = tuple[Tensor, Tensor, Tensor]


class Gradients(NamedTuple):
    """Outputs of attention, and their gradients, of the outputs' shapes."""

    out: Tensor
    lse: Tensor
    grad_out: Tensor
    grad_lse: Tensor | None
    """None stands for zeros."""

    def of_rows(self, rows: slice) -> Gradients:
        """Returns those of one packed sequence, as a dense batch of one."""
        return Gradients(
            batch_of_one(self.out[rows]),
            self.lse[None, :, rows],
            batch_of_one(self.grad_out[rows]),
            None if self.grad_lse is None else self.grad_lse[None, :, rows],
        )


@dataclass(frozen=True)
class Rounding:
    """The errors of a kernel's intermediate results, which are independent of each other."""

    relative: float
    """The error of an element of P or dS as an operand of a matrix product."""
    of_products: float
    """The error of an element of grad_out @ v^T, relative to the norms of its row and column."""
    least: float
    """The least absolute error of an element of P or dS: half of the smallest subnormal number."""


def gradients(
    inputs: AttentionInputs,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None = None,
) -> Three:
    """Returns (dq, dk, dv) in `inputs.dtype`, with the shapes of q, k and v.

    `out` and `lse` are what `reference.attention` returned, `grad_out` and `grad_lse` their
    gradients. Raises TunefaError for packed sequences that are not within q, k and v.
    """
    given = Gradients(out, lse, grad_out, grad_lse)
    if inputs.cu_seqlens is None:
        return _Dense(inputs, given).grads()
    return of_sequences(inputs, given, lambda one, its: _Dense(one, its).grads())


def gradients_and_spreads(
    inputs: AttentionInputs, given: Gradients, rounding: Rounding
) -> tuple[Three, Three]:
    """Returns (dq, dk, dv), and how far `rounding` moves each of their rows: tensors of the shapes
    of q, k and v without the last axis. Raises TunefaError as `gradients` does."""
    if inputs.cu_seqlens is None:
        dense = _Dense(inputs, given, rounding)
        return dense.grads(), dense.spreads
    spreads: list[Three] = []

    def one_sequence(one: AttentionInputs, its: Gradients) -> Three:
        dense = _Dense(one, its, rounding)
        found = dense.grads()
        spreads.append(dense.spreads)
        return found

    grads = of_sequences(inputs, given, one_sequence)
    wholes = tuple(grad.new_zeros(grad.shape[:-1]) for grad in grads)
    for (rows, keys, _), made in zip(inputs.sequences(), spreads, strict=True):
        for whole, part, place in zip(wholes, made, (rows, keys, keys), strict=True):
            whole[place] = part[0].transpose(0, 1)
    return grads, (wholes[0], wholes[1], wholes[2])


def of_sequences(
    inputs: AttentionInputs,
    given: Gradients,
    dense: Callable[[AttentionInputs, Gradients], Three],
) -> Three:
    """Returns (dq, dk, dv) of packed sequences, from `dense`, which computes those of one.

    Raises TunefaError as `gradients` does.
    """
    dq, dk, dv = (torch.zeros_like(x, dtype=inputs.dtype) for x in (inputs.q, inputs.k, inputs.v))
    for rows, keys, one in inputs.sequences():
        found = dense(one, given.of_rows(rows))
        for grad, part, place in zip((dq, dk, dv), found, (rows, keys, keys), strict=True):
            grad[place] = part[0].transpose(0, 1)
    return dq, dk, dv


class _Dense:
    """Backpropagates through dense attention, a block of rows at a time."""

    def __init__(
        self, inputs: AttentionInputs, given: Gradients, rounding: Rounding | None = None
    ) -> None:
        self._inputs, self._given, self._rounding = inputs, given, rounding
        self._dq, self._dk, self._dv = (
            torch.zeros_like(x, dtype=inputs.dtype) for x in (inputs.q, inputs.k, inputs.v)
        )
        self._squares = tuple(x.new_zeros(x.shape[:-1]) for x in (self._dq, self._dk, self._dv))

    @property
    def spreads(self) -> Three:
        """The distance by which rounding moves each row of (dq, dk, dv); known after `grads`."""
        of_q, of_k, of_v = (each.sqrt() for each in self._squares)
        scale = self._inputs.scale
        return of_q * scale, of_k * scale, of_v

    def grads(self) -> Three:
        """Returns (dq, dk, dv)."""
        inputs, made = self._inputs, self._inputs.dtype
        with reference.without_autocast(inputs.q.device):
            k, v = inputs.k.to(made), inputs.v.to(made)
            for block in reference.blocks(inputs):
                self._add(block, k, v)
        return self._dq, self._dk, self._dv

    def _add(self, block: reference.Block, k: Tensor, v: Tensor) -> None:
        """Adds what the block's rows contribute."""
        inputs, given = self._inputs, self._given
        rows, keys, made, group = block.rows, block.keys, inputs.dtype, inputs.group

        def of_rows(x: Tensor) -> Tensor:
            return grouped(x[:, :, rows].to(made), group)

        grad = of_rows(given.grad_out)
        delta = grad.mul(of_rows(given.out)).sum(-1, keepdim=True)
        if given.grad_lse is not None:
            delta -= of_rows(given.grad_lse[..., None])
        q = of_rows(inputs.q) * inputs.scale
        s = reference.scores_of(inputs, block, q, k)
        slope = _softcap_slope(inputs, s)
        p = s.sub_(of_rows(given.lse[..., None])).exp_()
        self._dv[:, :, keys] += p.transpose(2, 3) @ grad
        ds = (grad @ v[:, :, keys].transpose(2, 3)).sub_(delta).mul_(p)
        if slope is not None:
            ds.mul_(slope)
        self._dq[:, :, rows] = ungrouped(ds @ k[:, :, keys], group) * inputs.scale
        self._dk[:, :, keys] += ds.transpose(2, 3) @ q
        if self._rounding is not None:
            norms = tuple(_norms(x) for x in (q / inputs.scale, k[:, :, keys], v[:, :, keys], grad))
            self._add_squares(block, p, ds, norms)

    def _add_squares(
        self, block: reference.Block, p: Tensor, ds: Tensor, norms: tuple[Tensor, ...]
    ) -> None:
        """Adds the squares of the errors that the block's rows make; `norms` are those of the rows
        of q, k, v and grad_out."""
        rounding, group = self._rounding, self._inputs.group
        assert rounding is not None
        of_q, of_k, of_v, of_grad = norms
        least = rounding.least**2
        of_p = p.mul(rounding.relative).square_().add_(least)
        of_product = (p * of_v.transpose(2, 3)).mul_(of_grad).mul_(rounding.of_products).square_()
        of_ds = ds.mul(rounding.relative).square_().add_(of_product).add_(least)
        dq, dk, dv = self._squares
        rows, keys = block.rows, block.keys
        dq[:, :, rows] = ungrouped(of_ds @ of_k.square(), group).squeeze(-1)
        dk[:, :, keys] += (of_ds.transpose(2, 3) @ of_q.square()).squeeze(-1)
        dv[:, :, keys] += (of_p.transpose(2, 3) @ of_grad.square()).squeeze(-1)


def _norms(x: Tensor) -> Tensor:
    """The norms of rows: (batch, heads_kv, rows, 1)."""
    made: Tensor = x.norm(dim=-1, keepdim=True)
    return made


def _softcap_slope(inputs: AttentionInputs, scores: Tensor) -> Tensor | None:
    """d/ds c * tanh(s / c) = 1 - tanh(s / c)^2, from masked scores; None without a soft-cap."""
    if inputs.softcap is None:
        return None
    # Masked scores are -inf. Their gradient is 0, so any finite factor will do.
    return 1.0 - (scores / inputs.softcap).clamp_min_(-1.0).square_()
