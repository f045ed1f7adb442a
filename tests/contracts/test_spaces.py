"""The words that users read of every space in `search_spaces/`."""

from __future__ import annotations

from collections import Counter

import pytest

from tunefa.spec import space as spaces
from tunefa.spec.space_file import LIBRARY

LONGEST = 69
"""Beside a count such as `276,480  `, a name of this length fits a terminal of 80 columns."""


@pytest.mark.parametrize("name", spaces.names())
def test_a_rule_is_named_once_and_on_one_line(name: str) -> None:
    space = spaces.load(name)
    counts = Counter([*space.serves, *space.rules])
    assert set(counts.values()) == {1}
    assert not [rule for rule in space.rules if len(rule) > LONGEST]


@pytest.mark.parametrize("name", spaces.names())
def test_every_parameter_is_explained(name: str) -> None:
    space = spaces.load(name)
    docs = Counter(each.doc.strip() for each in space.parameters)
    assert "" not in docs and set(docs.values()) <= {1}
    assert docs or space.language == LIBRARY
