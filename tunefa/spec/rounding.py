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
