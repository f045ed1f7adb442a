"""What users read of every space in `search_spaces/`."""

from __future__ import annotations

from collections import Counter

import pytest

from tunefa.spec import space as spaces

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
    docs = Counter(each.doc.strip() for each in spaces.load(name).parameters)
    assert "" not in docs and set(docs.values()) == {1}
