"""Sizes as users write them: whole numbers, with k for 1,024."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tunefa.errors import TunefaError

_SIZE = re.compile(r"([1-9][0-9]{0,14})([kK]?)")


def parse_size(text: str, name: str) -> int:
    """Returns the size that a user wrote as `8192` or `8k`. Raises TunefaError for other texts."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise bad_size(name, text)
    return int(match[1]) * (1024 if match[2] else 1)


def bad_size(name: str, value: object, least: int = 1) -> TunefaError:
    """Returns the error for a size that is no whole number from `least` on."""
    return TunefaError(
        f"{name} is {value!r}: give a whole number from {least}, such as 8192 or 8k (8192)"
    )


def parts_of(text: str, parse_part: Callable[[str], tuple[str, Any]]) -> dict[str, Any]:
    """Returns the fields that the parts of a workload's text set, in their order.

    `parse_part` returns the field and the value of one part. Raises its errors, and TunefaError if
    two parts set one field.
    """
    found: dict[str, Any] = {}
    for part in text.strip().split("_"):
        name, value = parse_part(part)
        if name in found:
            raise TunefaError(f"{part!r} gives {name} a second time: leave one out")
        found[name] = value
    return found
