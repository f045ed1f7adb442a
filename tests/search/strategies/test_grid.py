"""tunefa/search/strategies/grid.py: every config in the file's order."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.sample_problem import (
    FEASIBLE,
    SMALL,
    good,
    problem,
)
from tunefa.search import strategies
from tunefa.search.strategy import Strategy
from tunefa.spec.trial import Config, Trial


def asked(strategy: Strategy, judge: Callable[[Config], Trial | None] = good) -> list[Config]:
    """Everything it proposes until it has nothing left, each told at once."""
    proposed: list[Config] = []
    while (config := strategy.ask()) is not None:
        proposed.append(dict(config))
        assert len(proposed) <= len(FEASIBLE), "it does not come to an end"
        if (trial := judge(config)) is not None:
            strategy.tell(trial)
    return proposed


def test_grid_keeps_the_order_of_the_file() -> None:
    assert asked(strategies.create("grid", problem())) == SMALL
