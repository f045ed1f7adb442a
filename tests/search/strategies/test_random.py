"""tunefa/search/strategies/random.py: each order is as likely, and the seed decides which."""

from __future__ import annotations

from collections import Counter

from tests.support.sample_problem import FEASIBLE, SMALL, good, problem, proposals
from tunefa.search import strategies
from tunefa.spec.trial import identity


def test_it_begins_anywhere() -> None:
    """In 30 seeds no config is first more often than by chance; predictions do not count."""
    firsts = Counter(
        identity(proposals("random", 1, good, FEASIBLE, seed=seed)[0]) for seed in range(30)
    )
    assert len(firsts) > 25


def test_what_it_is_told_changes_nothing() -> None:
    told = proposals("random", len(SMALL), good, SMALL, seed=3)
    strategy = strategies.create("random", problem(SMALL, seed=3))
    assert [strategy.ask() for _ in SMALL] == told


def test_known_configs_are_not_preferred() -> None:
    first = proposals("random", len(SMALL), good, SMALL, seed=3)
    assert proposals("random", len(SMALL), good, SMALL, seed=3, first=first[::-1]) == first
