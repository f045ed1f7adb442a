from __future__ import annotations

import threading

from tunefa.recent import Recent


def test_the_one_used_longest_ago_is_dropped() -> None:
    recent: Recent[str] = Recent(2)
    recent.add("a", "A")
    recent.add("b", "B")
    assert recent.get("a") == "A"
    recent.add("c", "C")
    assert [recent.get(key) for key in "abc"] == ["A", None, "C"]
    assert len(recent) == 2
    recent.clear()
    assert len(recent) == 0 and recent.get("a") is None


def test_replacing_a_value_drops_none() -> None:
    recent: Recent[int] = Recent(2)
    for key, value in [("a", 1), ("b", 2), ("a", 3)]:
        recent.add(key, value)
    assert [recent.get(key) for key in "ab"] == [3, 2]


def test_heavy_values_leave_room_for_fewer() -> None:
    recent: Recent[int] = Recent(10, weigh=lambda value: value)
    for key, value in [("a", 4), ("b", 5), ("c", 1)]:
        recent.add(key, value)
    assert len(recent) == 3
    assert recent.get("a") == 4
    recent.add("d", 3)
    assert [recent.get(key) for key in "abcd"] == [4, None, 1, 3]
    recent.add("d", 6)  # in place of 3
    assert recent.get("d") == 6 and len(recent) == 2
    recent.add("e", 99)  # more than there is room for: it has to run all the same
    assert [recent.get(key) for key in "acde"] == [None, None, None, 99]
    recent.add("f", 1)
    assert [recent.get(key) for key in "ef"] == [None, 1]


def test_what_was_spared_once_goes_the_next_time() -> None:
    recent: Recent[str] = Recent(2)
    recent.add("a", "A")
    recent.get("a")
    for key in "bcde":
        recent.add(key, key)
    assert [recent.get(key) for key in "abcde"] == [None, None, None, "d", "e"]


def test_threads_may_read_while_one_writes() -> None:
    recent: Recent[int] = Recent(8)
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            for key in range(16):
                if recent.get(key) not in (None, key):
                    wrong.append(key)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(20_000):
        recent.add(i % 16, i % 16)
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong and len(recent) <= 8
