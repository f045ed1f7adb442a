"""tunefa/spec/attended_pairs.py: the formula counts what the definition does."""

from __future__ import annotations

import itertools

from tunefa.spec import attended_pairs


def test_pairs_are_those_of_the_mask() -> None:
    sides = (None, 0, 1, 3, 20)
    for rows, keys, left, right in itertools.product((1, 2, 5, 9), (1, 3, 5, 12), sides, sides):
        counted = 0
        for i, j in itertools.product(range(rows), range(keys)):
            off = j - (i + keys - rows)
            counted += (left is None or -left <= off) and (right is None or off <= right)
        assert attended_pairs.count(rows, keys, left, right) == counted, (rows, keys, left, right)
