"""tunefa/search/gpu_turns.py: who has the GPU next."""

from __future__ import annotations

import threading

import pytest

from tunefa.search.gpu_turns import NoTurnLeft, Turns


def test_the_most_valuable_that_is_ready_comes_next() -> None:
    gpu_turns, taken = Turns(), []
    first = gpu_turns.new("first", 1.0)
    others = [
        gpu_turns.new(name, value) for name, value in (("low", 1.0), ("high", 5.0), ("slow", 9.0))
    ]

    def take(turn: object, is_ready: bool) -> None:
        with turn.taken(lambda: is_ready):  # type: ignore[attr-defined]
            taken.append(turn.name)  # type: ignore[attr-defined]

    with first.taken(lambda: True):
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
    with pytest.raises(NoTurnLeft, match="the budget was used"), late.new("a", 1.0).taken(bool):
        pass
    gpu_turns = Turns()
    gpu_turns.close("its worker has ended")
    turn = gpu_turns.new("a", 1.0)
    with pytest.raises(NoTurnLeft, match="its worker has ended"), turn.taken(lambda: True):
        pass
    turn.end()


def test_the_gpu_is_free_while_nobody_has_it() -> None:
    gpu_turns = Turns()
    with gpu_turns.new("a", 1.0).taken(lambda: True):
        before = gpu_turns.free_s
        assert gpu_turns.free_s == before > 0.0
    assert gpu_turns.free_s >= before
