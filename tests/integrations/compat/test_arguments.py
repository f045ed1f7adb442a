"""Arguments of FlashAttention's functions."""

from __future__ import annotations

import math

import pytest
import torch

import tunefa
from tunefa.integrations.compat.arguments import flash_lse, refuse, window


def test_what_is_not_given_is_not_refused() -> None:
    refuse("f", one=None, two=0.0, three=False, four=0)


@pytest.mark.parametrize(
    ("value", "shown"), [(0.1, "0.1"), (torch.ones(3), "Tensor"), (True, "True"), ([1], r"\[1\]")]
)
def test_what_is_given_is_named(value: object, shown: str) -> None:
    said = f"dropout_p of f is {shown}, and tunefa has none: leave it out"
    with pytest.raises(tunefa.TunefaError, match=said):
        refuse("f", other=None, dropout_p=value)


def test_windows_have_two_sides() -> None:
    assert window((-1, -1), False) is None
    assert window((None, None), True) is None
    assert window((3, -1), False) == (3, None)
    assert window((3, 2), False) == (3, 2)
    assert window((3, 2), True) == (3, None)
    assert window((-1, 0), True) is None


def test_rows_without_keys_have_an_lse_of_inf() -> None:
    lse = torch.tensor([1.0, -math.inf])
    assert flash_lse(lse).tolist() == [1.0, math.inf]
