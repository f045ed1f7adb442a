"""Rounding up of whole numbers, for tunefa, for expressions of search spaces and for kernels."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

Number = TypeVar("Number")
"""An int, or a numpy array of them."""


def ceil_div(value: Number, divisor: Any) -> Number:
    """Returns `value / divisor`, rounded up to a whole number."""
    quotient: Number = -(-value // divisor)  # type: ignore[operator]
    return quotient


def round_up(value: Number, multiple: Any) -> Number:
    """Returns the smallest multiple of `multiple` that is not below `value`."""
    product: Number = ceil_div(value, multiple) * multiple
    return product


def next_pow2(value: Any) -> int:
    """Returns the smallest power of two that is not below the integer `value`; 1 for 0 and less."""
    return 1 << max(0, operator.index(value) - 1).bit_length()


def coarse_ceil(number: int) -> int:
    """Returns `number` rounded up to a multiple of an eighth of the next power of two; at least 1.

    Numbers with the same result have the same next power of two. A launch for the result has at
    most an eighth more work than it needs.
    """
    step = max(1, next_pow2(max(1, number)) // 8)
    return ceil_div(max(1, number), step) * step
