"""tunefa/measure/reference.py with packed sequences: they are what each is by itself."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.packed_sequences import starts
from tunefa.measure import gradients, reference
from tunefa.measure.attention_inputs import AttentionInputs

SEQLENS_Q, SEQLENS_K = (5, 0, 7, 3, 8), (7, 3, 0, 3, 20)
SPARE_ROWS = 2


def packed(*mask: Any) -> AttentionInputs:
    """Causal, or with these of (causal, window_left, window_right, softcap)."""
    defaults: list[Any] = [True, None, None, None]
    causal, left, right, softcap = [*mask, *defaults[len(mask) :]]
    generator = torch.Generator().manual_seed(0)

    def normal(rows: int, heads: int, head_dim: int) -> Tensor:
        return torch.randn(
            rows + SPARE_ROWS, heads, head_dim, generator=generator, dtype=torch.float64
        ).requires_grad_()

    q, k = normal(sum(SEQLENS_Q), 4, 16), normal(sum(SEQLENS_K), 2, 16)
    v = normal(sum(SEQLENS_K), 2, 24)
    cu_seqlens = starts(*SEQLENS_Q), starts(*SEQLENS_K)
    return AttentionInputs(q, k, v, causal, 0.3, left, right, softcap, cu_seqlens=cu_seqlens)


@pytest.mark.parametrize("mask", [(False,), (True,), (True, 3), (False, 2, 2, 1.5)])
def test_each_sequence_is_as_by_itself(mask: Any) -> None:
    made = packed(*mask)
    causal, *more = mask
    out, lse = reference.attention(made)
    assert made.cu_seqlens is not None
    pairs = zip(*(pairwise(starts.tolist()) for starts in made.cu_seqlens), strict=True)
    for (begin, end), (first, last) in pairs:
        q, k, v = (
            x.transpose(0, 1)[None]
            for x in (made.q[begin:end], made.k[first:last], made.v[first:last])
        )
        right, right_lse = reference.attention(AttentionInputs(q, k, v, causal, 0.3, *more))
        assert torch.equal(out[begin:end], right[0].transpose(0, 1))
        assert torch.equal(lse[:, begin:end], right_lse[0])
    assert not out[-SPARE_ROWS:].any() and lse[:, -SPARE_ROWS:].isneginf().all()
    assert not out[5:12].any() and lse[:, 5:12].isneginf().all()  # the sequence without keys


@pytest.mark.parametrize("mask", [(False,), (True, 3), (False, 2, 2, 1.5)])
def test_gradients_are_autograd_s(mask: Any) -> None:
    made = packed(*mask)
    out, lse = reference.attention(made)
    grad, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    leaves, seen = (made.q, made.k, made.v), lse.isfinite()
    right = torch.autograd.grad((out, lse[seen]), leaves, (grad, grad_lse[seen]))
    found = gradients.gradients(made, out.detach(), lse.detach(), grad, grad_lse)
    for mine, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(mine, theirs)
