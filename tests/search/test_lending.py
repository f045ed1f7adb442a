"""tunefa/search/lending.py: what a search with the GPU does while it waits for a compiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.clock import Clock
from tunefa.search import lending
from tunefa.search.lending import CompilerWait


class Compiler:
    """A config is compiled `after_s` of the clock."""

    def __init__(self, clock: Clock, after_s: float) -> None:
        self.clock, self.at = clock, clock.now + after_s

    def is_ready(self, wait_s: float) -> bool:
        self.clock.sleep(min(wait_s, max(0.0, self.at - self.clock.now)))
        return self.clock.now >= self.at


class Borrowed:
    """A turn that others borrow while `borrowers`."""

    def __init__(self, borrowers: bool = False, wanted: bool = False) -> None:
        self.has_borrowers, self.is_wanted, self.loans = borrowers, wanted, 0

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        self.loans += 1
        yield


def wait(clock: Clock, after_s: float, turn: Borrowed, samples: int = 0) -> tuple[Any, list[float]]:
    """A wait, and when its search timed a config again, in seconds from now."""
    begun, used = clock.now, list[float]()

    def meanwhile(left_s: float) -> bool:
        if len(used) == samples:
            return False
        used.append(clock.now - begun)
        clock.sleep(0.02)
        return True

    asked: tuple[Any, Any] = Compiler(clock, after_s), turn
    return CompilerWait(*asked, meanwhile if samples else None), used


def test_it_times_its_configs_again_until_one_is_compiled(clock: Clock) -> None:
    turn, start = Borrowed(), clock.now
    made, used = wait(clock, 0.29, turn, samples=1000)
    assert not made.gives_way(10.0, True)
    assert turn.loans == 0 and len(used) == 15 and clock.now - start == pytest.approx(0.3)


def test_it_lends_the_gpu_where_nothing_is_left_to_time(clock: Clock) -> None:
    turn, start = Borrowed(), clock.now
    made, used = wait(clock, 0.3, turn, samples=5)
    assert not made.gives_way(10.0, True)
    assert len(used) == 5 and turn.loans == 2 and clock.now - start == pytest.approx(0.3)


def test_it_looks_whether_others_still_use_what_it_lends(clock: Clock) -> None:
    turn = Borrowed(borrowers=True)
    made, used = wait(clock, 0.35, turn, samples=1000)
    before = turn.lent

    @contextlib.contextmanager
    def lent() -> Iterator[None]:
        with before():
            yield
        turn.has_borrowers = turn.loans < 2

    turn.lent = lent  # type: ignore[method-assign]
    assert not made.gives_way(10.0, True)
    assert turn.loans == 2 and used[0] == pytest.approx(2 * lending._LOAN_S)


@pytest.mark.parametrize("found_any", [True, False])
def test_what_rounding_leaves_of_a_wait_is_none(
    monkeypatch: pytest.MonkeyPatch, found_any: bool
) -> None:
    """A clock that moves on with waits alone would stand still for ever."""

    class Coarse(Clock):
        looks = 0

        def monotonic(self) -> float:
            self.looks += 1
            assert self.looks < 10_000, "it waits for ever"
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += round(seconds, 6)

    clock = Coarse().drive(monkeypatch)
    for left_s in (3.0 + 1e-8, 1.7 + 1e-8, 0.4 + 1e-8):
        made, _ = wait(clock, 1e3, Borrowed())
        assert made.gives_way(left_s, found_any) == found_any


@pytest.mark.parametrize(("wanted", "samples"), [(True, 0), (True, 1000), (False, 0)])
def test_another_search_gets_the_gpu_after_some_patience(
    clock: Clock, wanted: bool, samples: int
) -> None:
    made, _ = wait(clock, 4.0, Borrowed(wanted=wanted), samples)
    start = clock.now
    assert made.gives_way(10.0, True) == wanted
    took_s = clock.now - start
    patience_s = lending.PATIENCE_S if samples else lending._LOAN_S
    assert took_s == pytest.approx(patience_s if wanted else 4.0, abs=0.03)


def test_a_kernel_with_little_time_left_ends_at_once_if_it_has_found_something(
    clock: Clock,
) -> None:
    turn, start = Borrowed(), clock.now
    made, used = wait(clock, 9.0, turn, samples=1000)
    assert made.gives_way(lending.LENDS_S - 0.1, True)
    assert clock.now == start and not used and not turn.loans
    assert not made.gives_way(lending.LENDS_S - 0.1, False), "it waits for its first right config"
    assert clock.now - start == pytest.approx(lending.LENDS_S - 0.1) and not turn.loans
