"""The default strategy: what is known, favourites, the surrogate, and polish."""

from __future__ import annotations

import itertools
import statistics

from tests.support.sample_problem import (
    BEST,
    FEASIBLE,
    PARAMETERS,
    SMALL,
    good,
    landscape_us,
    problem,
    proposals,
)
from tunefa.spec.trial import Config, identity


def test_where_the_budget_covers_all_it_begins_with_what_is_known_then_follows_the_model() -> None:
    infeasible = {**BEST, "BLOCK_M": 256, "BLOCK_N": 256}
    turned = dict(reversed(list(SMALL[-1].items())))  # as a file edited by hand may have it
    known = [SMALL[9], infeasible, SMALL[9], turned, {"BLOCK_M": 64}]
    proposed = proposals("auto", len(SMALL), good, SMALL, first=known, trials=1000)
    assert proposed[:2] == [SMALL[9], SMALL[-1]]
    assert list(proposed[1]) == list(SMALL[-1])
    assert sorted(map(repr, proposed[2:])) == sorted(repr(c) for c in SMALL if c not in known[:4])
    expected = dict(zip(map(identity, SMALL), problem().expected_us, strict=True))
    later = [expected[identity(config)] for config in proposed[2:]]
    assert later == sorted(later)


def steps(one: Config, other: Config) -> int:
    """Along the parameters' lists of values."""
    return sum(abs(p.values.index(one[p.name]) - p.values.index(other[p.name])) for p in PARAMETERS)


def test_auto_begins_with_what_is_known_then_with_favourites_far_apart() -> None:
    proposed = proposals("auto", 6, good, trials=60, first=[FEASIBLE[300], FEASIBLE[400]])
    assert proposed[:2] == [FEASIBLE[300], FEASIBLE[400]]
    assert min(itertools.starmap(steps, itertools.combinations(proposed[2:5], 2))) >= 3
    expected = problem(FEASIBLE).expected_us
    assert all(expected[FEASIBLE.index(c)] < statistics.median(expected) for c in proposed[2:5])


def test_auto_polishes_the_best() -> None:
    """Every fifth proposal is one step from one of the three best of those before it."""
    proposed = proposals("auto", 60, good)
    for turn in range(9, 60, 5):
        best = sorted(proposed[:turn], key=landscape_us)[:3]
        assert min(steps(proposed[turn], one) for one in best) == 1
