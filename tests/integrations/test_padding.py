"""tunefa/integrations/padding.py: padding is taken out, and nothing of it comes back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tunefa
from tests.support.unwritten import nan_behind
from tunefa.integrations import padding

COMPILE: Any = torch.compile
ROWS, KEYS = 5, 9
VALID_K = torch.tensor([[1] * 9, [0, 0, 1, 1, 0, 1, 1, 1, 0], [1] * 4 + [0] * 5]).bool()
VALID_Q = torch.tensor([[1] * 5, [0, 0, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (torch.randn(3, n, h, 8, requires_grad=True) for n, h in ((5, 4), (9, 2), (9, 2)))
    return q, k, v


def alone(given: tuple[Tensor, ...], valid_q: Tensor | None, causal: bool) -> Tensor:
    """Each sequence by itself, without its padding."""
    q, k, v = given
    out = torch.zeros_like(q)
    for i in range(3):
        of_q = torch.ones(ROWS, dtype=torch.bool) if valid_q is None else valid_q[i]
        one = (q[i : i + 1, of_q], k[i : i + 1, VALID_K[i]], v[i : i + 1, VALID_K[i]])
        out[i, of_q] = tunefa.flash_attention(*one, causal=causal)[0]
    return out


@pytest.mark.parametrize("valid_q", [None, VALID_Q], ids=["all", "some"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_outputs_and_gradients(valid_q: Tensor | None, causal: bool, compiled: bool) -> None:
    given, grad = inputs(), torch.randn(3, ROWS, 4, 8)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return padding.attention((q, k, v), valid_q, VALID_K, {"causal": causal})

    right = alone(given, valid_q, causal)
    grads = torch.autograd.grad(right, given, grad)
    torch._dynamo.reset()
    function = COMPILE(attend, backend="aot_eager", fullgraph=True) if compiled else attend
    with nan_behind():
        found = function(*given)
        torch.testing.assert_close(found, right)
        torch.testing.assert_close(torch.autograd.grad(found, given, grad), grads)
        with torch.no_grad():
            torch.testing.assert_close(function(*given), right)


def test_true_elements_come_first() -> None:
    assert padding.first(VALID_Q[1:]).tolist() == [[2, 3, 4, 0, 1], [0, 1, 2, 3, 4]]
