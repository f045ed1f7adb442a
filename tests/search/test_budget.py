"""tunefa/search/budget.py: what a budget may be, and how much of it is used."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import Clock
from tunefa.errors import TunefaError
from tunefa.search.budget import FLOOR_S, LOOK_S, LOOK_TRIALS, Budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("60s", Budget(seconds=60.0)),
        ("1.5s", Budget(seconds=1.5)),
        ("2m", Budget(seconds=120.0)),
        ("0.5min", Budget(seconds=30.0)),
        ("200", Budget(trials=200)),
        (" 7 ", Budget(trials=7)),
    ],
)
def test_times_and_trials(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize(
    "text",
    ["", "0", "0s", "-1", "-5s", "1.5", "60 s", "1h", "s", "1e3", "inf", "nan", "60s60s", "²",
     "9" * 400 + "s", "1_000", "٣s"],
)  # fmt: skip
def test_anything_else_is_one_sentence_with_examples(text: str) -> None:
    with pytest.raises(TunefaError, match="is neither a time nor a number of trials: write 60s"):
        Budget.parse(text)


@pytest.mark.parametrize(
    ("budget", "elapsed_s", "done", "fraction"),
    [
        (Budget(seconds=60.0), 0.0, 100, 0.0),
        (Budget(seconds=60.0), 15.0, 100, 0.25),
        (Budget(seconds=60.0), 90.0, 0, 1.0),
        (Budget(trials=200), 1e9, 0, 0.0),
        (Budget(trials=200), 0.0, 50, 0.25),
        (Budget(trials=200), 0.0, 300, 1.0),
        (Budget(trials=1), 0.0, 1, 1.0),
    ],
)
def test_how_much_is_used(budget: Budget, elapsed_s: float, done: int, fraction: float) -> None:
    assert budget.fraction(elapsed_s, done) == fraction


@given(st.integers(1, 10**9), st.integers(0, 2 * 10**9))
def test_trials_are_used_up_exactly_when_all_are_done(trials: int, done: int) -> None:
    assert (Budget.parse(str(trials)).fraction(0.0, done) >= 1.0) is (done >= trials)


def test_seconds_count_from_when_it_was_made(clock: Clock) -> None:
    budget = Budget.parse("60s")
    assert budget.start == clock.now
    assert budget.deadline() == budget.start + 60.0
    assert budget.deadline(0.5) == budget.start + 30.0
    clock.sleep(7.0)
    assert budget.elapsed_s == 7.0


def test_seconds_may_count_from_now(clock: Clock) -> None:
    budget = Budget(seconds=60.0, floor_s=0.0)
    clock.sleep(7.0)
    later = budget.from_now(20.0)
    assert (later.seconds, later.start, later.floor_s) == (20.0, clock.now, 0.0)
    assert Budget(trials=5).from_now(None).trials == 5


def test_defaults_have_the_floor_or_the_deadline_of_their_share() -> None:
    for seconds, share, after_s in ((1.0, 1.0, FLOOR_S), (75.0, 0.2, FLOOR_S), (75.0, 1.0, 75.0)):
        budget = Budget(seconds=seconds)
        assert budget.patience(share) == budget.start + after_s
    assert math.isinf(Budget(trials=5).patience(0.5))


def test_trials_have_no_deadline() -> None:
    assert math.isinf(Budget(trials=5).deadline())


def test_a_share_of_the_trials() -> None:
    """The trials that others used count: those that they left over are there for the next."""
    assert [Budget(trials=11).trials_left(share, 0) for share in (0.5, 1.0)] == [6, 11]
    assert [Budget(trials=10).trials_left(n / 5, 0) for n in range(6)] == [0, 2, 4, 6, 8, 10]
    assert Budget(trials=10).trials_left(0.5, 2) == 3
    assert Budget(trials=10).trials_left(0.5, 7) == 0
    assert Budget(seconds=60).trials_left(0.5, 0) is None


def parts(budget: Budget, kernels: int, part: float = 1.0) -> list[float]:
    """Seconds or trials of each kernel."""
    ends = budget.shares(kernels, part)
    whole = budget.seconds or budget.trials or 0
    return [whole * (end - start) for start, end in zip([0.0, *ends], ends, strict=False)]


@pytest.mark.parametrize(
    ("budget", "kernels", "each"),
    [
        (Budget(seconds=55), 1, [55]),
        (Budget(seconds=55), 2, [7 + 41 * 2 / 3, 7 + 41 / 3]),
        (Budget(seconds=120), 3, [7 + 66, 7 + 22, 7 + 11]),
        (Budget(seconds=10), 2, [5, 5]),
        (Budget(trials=110), 3, [20 + 100 / 3, 20 + 100 / 9, 20 + 50 / 9]),
        (Budget(trials=30), 3, [10, 10, 10]),
    ],
)
def test_shares(budget: Budget, kernels: int, each: list[float]) -> None:
    assert parts(budget, kernels) == pytest.approx(each)


@given(st.integers(10, 600), st.integers(2, 8), st.floats(0.5, 1.0), st.booleans())
def test_all_is_shared_and_none_has_less_than_the_next(
    size: int, kernels: int, part: float, by_time: bool
) -> None:
    budget = Budget(seconds=size) if by_time else Budget(trials=size)
    ends, each = budget.shares(kernels, part), parts(budget, kernels, part)
    assert len(ends) == kernels and ends[-1] == part
    look = min(LOOK_S if by_time else LOOK_TRIALS, part * size / kernels)
    assert min(each) > look - 1e-6 and each[0] > (part * size - (kernels - 1) * look) * 2 / 3 - 1e-6
    assert all(one > after - 1e-6 for one, after in itertools.pairwise(each))
