"""Arguments of FlashAttention's functions, as tunefa takes them."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from tunefa.errors import TunefaError
from tunefa.runtime.call import Window

Sides = tuple[int | None, int | None]


def refuse(function: str, **given: Any) -> None:
    """Raises TunefaError for the first argument that is given: tunefa has no such thing."""
    for name, value in given.items():
        is_tensor = isinstance(value, Tensor)
        if is_tensor or value not in (None, False, 0):
            shown = type(value).__name__ if is_tensor else repr(value)
            raise TunefaError(
                f"{name} of {function} is {shown}, and tunefa has none: leave it out, or call the "
                f"library itself for it"
            )


def window(window_size: Sides, causal: bool) -> Window:
    """Returns a window (left, right), in which None and negative numbers mean no limit."""
    left, right = (None if side is None or side < 0 else int(side) for side in window_size)
    if causal:
        right = None
    return None if left is None and right is None else (left, right)


def flash_lse(lse: Tensor) -> Tensor:
    """Returns the logsumexp as FlashAttention has it: inf for rows that see no key."""
    return lse.masked_fill(lse.isneginf(), math.inf)
