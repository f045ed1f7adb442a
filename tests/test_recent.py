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
