from __future__ import annotations

import threading

from tunefa.runtime.bounded_cache import BoundedCache


def test_the_one_used_longest_ago_is_dropped() -> None:
    cache: BoundedCache[str] = BoundedCache(2)
    cache.add("a", "A")
    cache.add("b", "B")
    assert cache.get("a") == "A"
    cache.add("c", "C")
    assert [cache.get(key) for key in "abc"] == ["A", None, "C"]
    assert len(cache) == 2
    cache.clear()
    assert len(cache) == 0 and cache.get("a") is None


def test_replacing_a_value_drops_none() -> None:
    cache: BoundedCache[int] = BoundedCache(2)
    for key, value in [("a", 1), ("b", 2), ("a", 3)]:
        cache.add(key, value)
    assert [cache.get(key) for key in "ab"] == [3, 2]


def test_heavy_values_leave_room_for_fewer() -> None:
    cache: BoundedCache[int] = BoundedCache(10, weigh=lambda value: value)
    for key, value in [("a", 4), ("b", 5), ("c", 1)]:
        cache.add(key, value)
    assert len(cache) == 3
    assert cache.get("a") == 4
    cache.add("d", 3)
    assert [cache.get(key) for key in "abcd"] == [4, None, 1, 3]
    cache.add("d", 6)  # in place of 3
    assert cache.get("d") == 6 and len(cache) == 2
    cache.add("e", 99)  # more than there is room for: it has to run all the same
    assert [cache.get(key) for key in "acde"] == [None, None, None, 99]
    cache.add("f", 1)
    assert [cache.get(key) for key in "ef"] == [None, 1]


def test_what_was_spared_once_goes_the_next_time() -> None:
    cache: BoundedCache[str] = BoundedCache(2)
    cache.add("a", "A")
    cache.get("a")
    for key in "bcde":
        cache.add(key, key)
    assert [cache.get(key) for key in "abcde"] == [None, None, None, "d", "e"]


def test_threads_may_read_while_one_writes() -> None:
    cache: BoundedCache[int] = BoundedCache(8)
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            for key in range(16):
                if cache.get(key) not in (None, key):
                    wrong.append(key)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(20_000):
        cache.add(i % 16, i % 16)
    done.set()
    for reader in readers:
        reader.join()
    assert not wrong and len(cache) <= 8
