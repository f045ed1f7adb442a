"""tunefa/spec/rounding.py against the definition of rounding up."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunefa.spec.rounding import ceil_div, coarse_ceil, next_pow2, round_up


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_the_least_multiple_that_is_not_below(value: int, divisor: int) -> None:
    quotient = ceil_div(value, divisor)
    assert (quotient - 1) * divisor < value <= quotient * divisor
    assert round_up(value, divisor) == quotient * divisor


def test_large_numbers_are_not_rounded_through_floats() -> None:
    assert ceil_div(10**18 + 1, 10) == 10**17 + 1


def test_arrays_are_rounded_element_by_element() -> None:
    made = round_up(np.array([0, 1, 64, 65]), 64)
    assert made.tolist() == [0, 64, 64, 128]


@given(st.integers(1, 2**60))
def test_the_next_power_of_two(value: int) -> None:
    found = next_pow2(value)
    assert found / 2 < value <= found and math.log2(found).is_integer()


def test_powers_of_two_stay_and_nothing_is_one() -> None:
    assert [next_pow2(value) for value in (-3, 0, 1, 2, 3, 4, 5)] == [1, 1, 1, 2, 4, 4, 8]
    with pytest.raises(TypeError):
        next_pow2(2.0)


@given(st.integers(1, 10**9))
def test_a_coarse_ceiling_is_at_most_an_eighth_more(number: int) -> None:
    coarse = coarse_ceil(number)
    assert number <= coarse < number + next_pow2(number) / 8 or coarse == number
    assert coarse_ceil(coarse) == coarse and next_pow2(coarse) == next_pow2(number)
    assert coarse_ceil(0) == coarse_ceil(-3) == 1
