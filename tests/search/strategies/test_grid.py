"""tunefa/search/strategies/grid.py: every config in the file's order."""

from __future__ import annotations

from tests.support.sample_problem import (
    SMALL,
    asked,
    problem,
)
from tunefa.search import strategies


def test_grid_keeps_the_order_of_the_file() -> None:
    assert asked(strategies.create("grid", problem())) == SMALL
