"""`Race.drop_losers` of tunefa/measure/race.py: who leaves a race, and on how sure a ground."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tunefa.measure import race
from tunefa.measure.race import Race

ROUNDS = 24


def after(*slower_by: NDArray[np.float64]) -> Race:
    """A race in which racer 0, its twin, and others are timed; the others' log ratios to it."""
    run = Race(len(slower_by) + 2)
    others = [100.0 * np.exp(each) for each in slower_by]
    columns = [np.full(ROUNDS, 100.0), *others, np.full(ROUNDS, 100.0)]
    run.samples_us = np.stack(columns, axis=1).tolist()
    return run


def ratios(low_at: float) -> NDArray[np.float64]:
    """Log ratios whose interval, at this level of confidence, just excludes 0."""
    noise: NDArray[np.float64] = np.random.default_rng(3).normal(0.0, 0.02, ROUNDS)
    low = race.interval(noise, low_at).low
    noise += 1e-6 - np.log1p(low)
    return noise


@pytest.mark.parametrize("racers", [3, 9])
def test_a_racer_is_dropped_when_one_in_a_hundred_would_be_wrongly(racers: int) -> None:
    """Over all racers: with more of them, each needs more."""
    level = 1.0 - 0.01 / racers
    rest = [np.zeros(ROUNDS)] * (racers - 3)
    for doubt, dropped in ((20.0, False), (3.0, False), (1.0, True), (0.5, True)):
        run = after(ratios(1.0 - doubt * 0.01 / racers), *rest)
        run.drop_losers()
        assert (1 in run.dropped) is dropped, f"at {doubt} times the level {level}"


def test_who_is_dropped_is_out_from_that_round_on() -> None:
    run = after(np.full(ROUNDS, 0.1), np.zeros(ROUNDS))
    run.drop_losers()
    assert run.dropped == {1: ROUNDS} and run.survivors == [0, 2, 3]


def test_the_first_its_twin_and_those_pinned_stay_however_slow() -> None:
    slow, fast = np.full(ROUNDS, 0.1), np.full(ROUNDS, -0.5)
    run = after(slow, fast, slow)
    run.pinned = frozenset({1})
    run.drop_losers()
    assert run.dropped == {3: ROUNDS} and run.leader == 2


def test_equals_are_hardly_ever_dropped() -> None:
    random = np.random.default_rng(0)
    dropped = 0
    for _ in range(60):
        noise = random.normal(0.0, 0.01, (2, ROUNDS))
        run = after(*noise)
        run.drop_losers()
        dropped += len(run.dropped)
    assert dropped <= 2
