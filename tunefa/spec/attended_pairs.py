"""The query-key pairs that a mask leaves of one sequence."""

from __future__ import annotations


def count(rows: int, keys: int, left: int | None, right: int | None) -> int:
    """Returns how many pairs of a query i and a key j one head attends, of `rows` queries and
    `keys` keys: those with -left <= j - (i + keys - rows) <= right. None for a side hides none."""
    pairs = rows * keys
    if right is not None:
        pairs = _keys_before(rows, keys, keys - rows + right + 1)
    if left is not None:
        pairs -= _keys_before(rows, keys, keys - rows - left)
    return pairs


def _keys_before(rows: int, keys: int, start: int) -> int:
    """Returns the number of pairs of a query i and a key j < start + i."""

    def total(rows: int) -> int:  # min(0, keys) + ... + min(rows - 1, keys)
        ramp = min(max(rows, 0), keys)
        return ramp * (ramp - 1) // 2 + max(rows - ramp, 0) * keys

    return total(start + rows) - total(start)
