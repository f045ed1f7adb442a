"""tunefa/search/gpu_turns.py: who has the GPU next."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable

import pytest

from tunefa.search.gpu_turns import NoTurnLeft, Turn, Turns


class Search:
    """Has so many configs to try while it waits, and is ready when it is said to be."""

    def __init__(self, gpu_turns: Turns, name: str, value: float, untried: int = 0) -> None:
        self.turn, self.untried = gpu_turns.new(name, value), untried
        self.is_ready = self.had_it = self.is_choosing = False
        self.tried: list[str] = []
        """The searches that tried a config, by name, in a list that searches may share."""

    def is_enough(self) -> bool:
        return self.is_ready

    def has_untried(self) -> bool:
        return self.untried > 0

    def try_one(self) -> None:
        time.sleep(0.02)
        self.untried -= 1
        self.tried.append(self.turn.name)

    def begun(self) -> threading.Thread:
        def take() -> None:
            with contextlib.suppress(NoTurnLeft), self.turn.taken(self):
                self.had_it = True

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        return thread


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_searches_try_configs_while_none_is_ready() -> None:
    gpu_turns = Turns()
    low, high = (Search(gpu_turns, name, value, 2) for name, value in (("low", 1.0), ("high", 2.0)))
    low.tried = high.tried
    threads = [each.begun() for each in (low, high)]
    until(lambda: len(high.tried) == 4)
    other = "low" if high.tried[0] == "high" else "high"
    assert high.tried[2:] == [other] * 2, "one after the other, each to its end"
    assert not low.had_it and not high.had_it
    low.is_ready = True
    threads[0].join(5.0)
    assert low.had_it and not high.had_it
    gpu_turns.close("the end")


def test_a_search_that_chooses_prepares_and_may_try() -> None:
    gpu_turns = Turns()
    seen: list[int] = []

    class Chooses(Search):
        def try_one(self) -> None:
            seen.append(gpu_turns.count("preparing"))
            super().try_one()

    search = Chooses(gpu_turns, "chooses", 1.0, 1)
    search.is_choosing = True
    search.begun()
    until(lambda: len(search.tried) == 1)
    assert seen == [1] and gpu_turns.count("preparing") == 1
    search.is_choosing = False
    until(lambda: gpu_turns.count("preparing") == 0)
    gpu_turns.close("the end")


def test_a_search_tries_all_it_has_before_another_one_tries() -> None:
    """The bench makes the tensors of each workload anew."""
    gpu_turns = Turns()

    class Slow(Search):
        def is_enough(self) -> bool:
            if self.tried[-1:] == [self.turn.name]:
                time.sleep(0.01)  # after its trial, the other one has time to take the GPU
            return super().is_enough()

    one, other = (Slow(gpu_turns, name, 1.0, 6) for name in ("one", "other"))
    one.tried = other.tried
    for each in (one, other):
        each.begun()
    until(lambda: len(one.tried) == 12)
    changes = sum(a != b for a, b in itertools.pairwise(one.tried))
    assert changes == 1, one.tried
    gpu_turns.close("the end")


def test_what_is_ready_comes_before_what_would_try() -> None:
    gpu_turns = Turns()
    ready, other = Search(gpu_turns, "ready", 1.0), Search(gpu_turns, "other", 9.0, 1)
    ready.is_ready = True
    with gpu_turns.new("first", 1.0).taken():
        threads = [ready.begun(), other.begun()]
        until(lambda: gpu_turns.count("ready") == 1)
        assert other.tried == [], "the first has the GPU"
        ready.tried = other.tried
        take = ready.turn.end
        ready.turn.end = lambda: (other.tried.append("ready"), take())  # type: ignore
    threads[0].join(5.0)
    until(lambda: len(other.tried) == 2)
    assert other.tried == ["ready", "other"]
    gpu_turns.close("the end")


def test_a_search_that_waits_for_compilers_lends_the_gpu() -> None:
    gpu_turns = Turns()
    ready, first = Search(gpu_turns, "ready", 1.0, 99), gpu_turns.new("first", 1.0)
    ready.is_ready = True
    with first.taken():
        thread = ready.begun()
        until(lambda: gpu_turns.count("ready") == 1)
        assert first.is_wanted and first.has_begun
        before = gpu_turns.free_s
        with first.lent():
            until(lambda: len(ready.tried) > 1)
            tried = len(ready.tried)
        after = len(ready.tried)
        assert after - tried <= 1, "the GPU is taken back after the trial in progress"
        assert not ready.had_it and first.state == "timing"
        time.sleep(0.05)
        assert len(ready.tried) == after, "no trial runs after the GPU was taken back"
        assert gpu_turns.free_s == before, "some search has it"
    thread.join(5.0)
    assert ready.had_it


def test_a_search_that_tries_a_config_is_ready_all_the_same() -> None:
    gpu_turns = Turns()
    ready, first = Search(gpu_turns, "ready", 1.0, 99), gpu_turns.new("first", 1.0)
    ready.is_ready = True
    with first.taken():
        ready.begun()
        with first.lent():
            until(lambda: ready.turn.state == "trying")
            assert gpu_turns.count("ready") == 1
    until(lambda: ready.had_it)
    assert gpu_turns.count("ready") == 0


def test_a_search_whose_trial_fails_leaves_the_gpu() -> None:
    gpu_turns, wrong = Turns(), OSError("no space left")

    class Fails(Search):
        def try_one(self) -> None:
            raise wrong

    search = Fails(gpu_turns, "fails", 1.0, 1)
    with pytest.raises(OSError, match="no space left"), search.turn.taken(search):
        pass
    assert search.turn.state == "over" and gpu_turns.searches == 0
    with gpu_turns.new("next", 1.0).taken():
        assert gpu_turns.count("timing") == 1


def test_the_most_valuable_that_is_ready_comes_next() -> None:
    gpu_turns, taken = Turns(), list[str]()
    first = gpu_turns.new("first", 1.0)
    others = [
        gpu_turns.new(name, value) for name, value in (("low", 1.0), ("high", 5.0), ("slow", 9.0))
    ]

    def take(turn: Turn, is_ready: bool) -> None:
        search = Search(Turns(), turn.name, 0.0)
        search.is_ready = is_ready
        with contextlib.suppress(NoTurnLeft), turn.taken(search):
            taken.append(turn.name)

    with first.taken():
        arguments = zip(others, (True, True, False), strict=True)
        threads = [threading.Thread(target=take, args=each, daemon=True) for each in arguments]
        for thread in threads:
            thread.start()
        while gpu_turns.count("ready") < 2:
            pass
        assert first.is_wanted and taken == []
    for thread in threads[:2]:
        thread.join(5.0)
    assert taken == ["high", "low"]
    gpu_turns.close("the end")


def test_no_turn_begins_without_time_or_after_the_end() -> None:
    late = Turns(lambda: 2.0, least_s=3.0)
    with pytest.raises(NoTurnLeft, match="the budget was used"), late.new("a", 1.0).taken():
        pass
    gpu_turns = Turns()
    gpu_turns.close("its worker has ended")
    turn = gpu_turns.new("a", 1.0)
    with pytest.raises(NoTurnLeft, match="its worker has ended"), turn.taken():
        pass
    assert turn.state == "over" and gpu_turns.searches == 0


def test_the_last_turn_has_all_that_is_left() -> None:
    """The rest is too short for another turn: in a sweep of 140 s it was 4 s of a GPU."""
    for left_s, expected_s in ((20.0, 8.0), (14.0, 8.0), (13.9, 13.9), (7.0, 7.0), (math.inf, 8.0)):
        gpu_turns = Turns(least_s=6.0)
        gpu_turns.left_s = itertools.repeat(left_s).__next__
        assert gpu_turns.new("a", 1.0).seconds(8.0) == expected_s


def test_a_search_that_is_alone_and_comes_again_leaves_what_it_needs() -> None:
    """With less than that it could not come again, and the rest would be lost."""
    for left_s, expected_s in ((49.0, 49.0), (51.0, 25.0)):
        gpu_turns = Turns(least_s=2.5)
        gpu_turns.left_s = itertools.repeat(left_s).__next__
        turn = gpu_turns.new("alone", 1.0, 25.0)
        gpu_turns.value({"alone": 1.0}, {"alone": 25.0})
        assert turn.seconds(20.0) == expected_s


def test_a_turn_that_needs_more_than_is_left_does_not_begin() -> None:
    gpu_turns = Turns(lambda: 5.0, least_s=2.0)
    turn = gpu_turns.new("long", 1.0, 6.0)
    with pytest.raises(NoTurnLeft, match="the budget was used"), turn.taken():
        pass
    turn = gpu_turns.new("long", 1.0, 6.0)
    gpu_turns.value({}, {"long": 4.0})
    with turn.taken():
        assert turn.has_begun and turn.least_s == 4.0


def test_a_turn_has_what_it_needs_and_leaves_what_others_need() -> None:
    gpu_turns = Turns(lambda: 20.0, least_s=2.0)
    first = gpu_turns.new("first", 1.0, 12.0)
    assert first.seconds(8.0) == 12.0
    gpu_turns.new("long", 1.0, 9.0)
    assert first.seconds(8.0) == 20.0, "no other turn could begin after it"
    gpu_turns.value({"next": 1.0, "done": 0.0}, {"next": 8.5, "done": 3.0})
    assert first.seconds(8.0) == 20.0
    gpu_turns.value({"next": 1.0}, {"next": 7.0})
    assert first.seconds(8.0) == 12.0, "another search may come"
    gpu_turns.value({}, {})
    gpu_turns.new("short", 1.0, 7.0)
    assert first.seconds(8.0) == 12.0


def test_races_say_how_many_times_as_long_they_take() -> None:
    turn = Turns().new("a", 1.0)
    assert turn.pace == 1.0
    turn.raced(1.0, 2.0)
    once = turn.pace
    turn.raced(60.0, 120.0)
    assert 1.0 < once < 1.5 < turn.pace < 2.0


def test_the_gpu_is_free_while_nobody_has_it() -> None:
    gpu_turns = Turns()
    with gpu_turns.new("a", 1.0).taken():
        before = gpu_turns.free_s
        assert gpu_turns.free_s == before > 0.0
    time.sleep(0.005)
    assert gpu_turns.free_s > before


def test_others_would_borrow_the_gpu_if_a_config_of_theirs_is_compiled() -> None:
    made = Turns()
    own, other = made.new("own", 2.0), made.new("other", 1.0)
    own.may_try = own.is_ready = True
    assert not own.has_borrowers and other.has_borrowers
    other.may_try = True
    assert own.has_borrowers
    other.may_try, other.is_ready = False, True
    assert not own.has_borrowers, "one that is ready and has tried all would borrow it in vain"
