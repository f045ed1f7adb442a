"""tunefa/store/set_cover.py: against every subset, for sets that are small enough."""

from __future__ import annotations

import itertools
import random

import pytest

from tunefa.store import set_cover


def sample(seed: int, sets: int = 9, elements: int = 7) -> list[int]:
    """Random sets that together hold every element."""
    source = random.Random(seed)
    made = [source.getrandbits(elements) & source.getrandbits(elements) for _ in range(sets)]
    for bit in range(elements):
        made[source.randrange(sets)] |= 1 << bit
    return made


def union(sets: list[int], chosen: tuple[int, ...]) -> int:
    found = 0
    for place in chosen:
        found |= sets[place]
    return found


def by_trying(sets: list[int], everything: int) -> int:
    """The size of a smallest cover."""
    for size in range(len(sets) + 1):
        for chosen in itertools.combinations(range(len(sets)), size):
            if union(sets, chosen) == everything:
                return size
    raise AssertionError("no cover")


@pytest.mark.parametrize("seed", range(40))
def test_no_cover_is_smaller_and_the_bound_says_so(seed: int) -> None:
    sets, everything = sample(seed), 2**7 - 1
    found = set_cover.fewest(sets, everything)
    assert union(sets, found.chosen) == everything
    assert len(found.chosen) == by_trying(sets, everything) == found.bound
    assert found.is_exact


@pytest.mark.parametrize("seed", range(5))
def test_without_time_the_cover_is_whole_and_the_bound_still_holds(seed: int) -> None:
    sets, everything = sample(seed, 60, 40), 2**40 - 1
    best = set_cover.fewest(sets, everything)
    hurried = set_cover.fewest(sets, everything, seconds=0.0)
    assert union(sets, hurried.chosen) == everything
    assert 1 <= hurried.bound <= len(best.chosen) <= len(hurried.chosen)


def test_the_edges() -> None:
    assert set_cover.fewest([], 0) == set_cover.Cover((), 0)
    assert set_cover.fewest([1, 3, 3, 2], 3) == set_cover.Cover((1,), 1)
    with pytest.raises(ValueError, match="in no set"):
        set_cover.fewest([1], 3)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_cover_of_that_size_is_cheaper(seed: int, count: int) -> None:
    source = random.Random(seed)
    costs = [
        {name: source.random() for name in range(7) if source.random() < 0.6} for _ in range(5)
    ]

    def total(chosen: tuple[int, ...]) -> float | None:
        least = [[row[name] for name in chosen if name in row] for row in costs]
        return sum(map(min, least)) if all(least) else None

    every = itertools.combinations(range(7), count)
    known = [cost for chosen in every if (cost := total(chosen)) is not None]
    found = set_cover.cheapest(costs, count)
    if not known:
        assert found is None
        return
    assert found is not None and len(found) <= count
    assert total(found) == pytest.approx(min(known))
