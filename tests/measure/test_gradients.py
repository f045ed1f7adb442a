"""tunefa/measure/gradients.py: the gradients against autograd, and how far rounding moves them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tunefa.measure import reference
from tunefa.measure.attention_inputs import AttentionInputs
from tunefa.measure.gradients import Gradients, Rounding, gradients, gradients_and_spreads

ROUNDING = Rounding(relative=2**-9, of_products=0.0, least=0.0)


def made(
    causal: bool = True, softcap: float | None = None, window: int | None = None
) -> AttentionInputs:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q, k, v = normal(2, 4, 33, 16), normal(2, 2, 50, 16), normal(2, 2, 50, 24)
    return AttentionInputs(q, k, v, causal, 0.25, window, None, softcap)


def given_of(inputs: AttentionInputs) -> Gradients:
    out, lse = reference.attention(inputs)
    generator = torch.Generator().manual_seed(1)
    grad_out = torch.randn(out.shape, generator=generator, dtype=out.dtype)
    grad_lse = torch.randn(lse.shape, generator=generator, dtype=lse.dtype)
    return Gradients(out, lse, grad_out, grad_lse)


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(("causal", "window"), [(False, None), (True, None), (True, 9)])
def test_the_gradients_are_those_of_autograd(
    causal: bool, window: int | None, softcap: float | None
) -> None:
    inputs = made(causal, softcap, window)
    given = given_of(inputs)
    leaves = [each.clone().requires_grad_() for each in (inputs.q, inputs.k, inputs.v)]
    out, lse = reference.attention(replace(inputs, q=leaves[0], k=leaves[1], v=leaves[2]))
    assert given.grad_lse is not None
    right = torch.autograd.grad((out, lse), leaves, (given.grad_out, given.grad_lse))
    found = gradients(inputs, given.out, given.lse, given.grad_out, given.grad_lse)
    again, spreads = gradients_and_spreads(inputs, given, ROUNDING)
    for mine, same, theirs, spread in zip(found, again, right, spreads, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert torch.equal(mine, same)
        assert spread.shape == mine.shape[:-1] and bool((spread >= 0).all())


def test_spreads_say_how_far_rounded_operands_move_a_row() -> None:
    """P and dS are changed by random relative errors; over many draws the root mean square of what
    this does to a row is its spread."""
    inputs, draws = replace(made(causal=False), scale=0.1), 400
    given = given_of(inputs)
    right, spreads = gradients_and_spreads(inputs, given, ROUNDING)
    k, v = (each.repeat_interleave(2, dim=1) for each in (inputs.k, inputs.v))
    p = (inputs.scale * inputs.q @ k.mT - given.lse[..., None]).exp()
    assert given.grad_lse is not None
    delta = (given.grad_out * given.out).sum(-1) - given.grad_lse
    ds = p * (given.grad_out @ v.mT - delta[..., None])
    torch.testing.assert_close(inputs.scale * ds @ k, right[0])
    generator = torch.Generator().manual_seed(2)

    def moved(terms: Tensor) -> Tensor:
        errors = torch.randn(terms.shape, generator=generator, dtype=terms.dtype)
        return terms * errors * ROUNDING.relative

    squares = [torch.zeros_like(each) for each in spreads]
    for _ in range(draws):
        of_q, of_k = inputs.scale * moved(ds) @ k, inputs.scale * moved(ds).mT @ inputs.q
        of_v = moved(p).mT @ given.grad_out
        of_keys = (each.reshape(2, 2, 2, *each.shape[2:]).sum(2) for each in (of_k, of_v))
        for total, each in zip(squares, (of_q, *of_keys), strict=True):
            total += each.square().sum(-1)
    for total, spread in zip(squares, spreads, strict=True):
        ratio = (total / draws).sqrt() / spread
        assert float(ratio.min()) > 0.8 and float(ratio.max()) < 1.2


def test_packed_sequences_have_the_spreads_of_dense_ones() -> None:
    dense = made()
    given = given_of(dense)

    def packed(x: Tensor) -> Tensor:
        return x.transpose(1, 2).flatten(0, 1)

    starts = torch.tensor([0, 33, 66]), torch.tensor([0, 50, 100])
    inputs = replace(
        dense, q=packed(dense.q), k=packed(dense.k), v=packed(dense.v), cu_seqlens=starts
    )
    assert given.grad_lse is not None
    lse, grad_lse = (each.transpose(0, 1).flatten(1) for each in (given.lse, given.grad_lse))
    its = Gradients(packed(given.out), lse, packed(given.grad_out), grad_lse)
    for mine, right in zip(
        gradients_and_spreads(inputs, its, ROUNDING),
        gradients_and_spreads(dense, given, ROUNDING),
        strict=True,
    ):
        for a, b in zip(mine, right, strict=True):
            flat = packed(b) if b.dim() == 4 else b.transpose(1, 2).flatten(0, 1)
            torch.testing.assert_close(a, flat)
