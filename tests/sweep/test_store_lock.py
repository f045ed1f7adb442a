"""tunefa/sweep/store_lock.py: whether a sweep runs on this store."""

from __future__ import annotations

import fcntl

from tunefa.sweep import store_lock


def test_it_is_taken_while_a_process_has_it() -> None:
    assert not store_lock.is_taken(), "there is no file"
    store_lock.path().parent.mkdir(parents=True)
    with open(store_lock.path(), "w") as file:
        assert not store_lock.is_taken()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert store_lock.is_taken() and store_lock.is_taken()
    assert not store_lock.is_taken()
