"""The binaries that processes of this machine compile now, so that no two compile the same one.

Workloads of other lengths often need the same binary: all forward passes of a model have one
default. The process that compiles it locks a byte of one file, at a place that the binary's name
says. The system frees the byte when the process ends, however it ends, and nothing is left to clean
up.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from tunefa import assets

_PLACES = 2**56
"""The bytes that may be locked. Two names with the same place wait for each other in vain."""


@contextlib.contextmanager
def claimed(name: str) -> Iterator[bool]:
    """Yields whether no other process compiles the binary with this name; then none begins it in
    the context. True where the file cannot be locked.

    A process may have one such context at a time.
    """
    try:
        descriptor = _opened(_path())
    except OSError:  # a folder that cannot be written: nothing is cached either
        yield True
        return
    try:
        yield _is_locked(descriptor, name)
    finally:
        os.close(descriptor)  # which unlocks it


def _path() -> Path:
    return assets.cache() / "compiling.lock"


def _opened(path: Path) -> int:
    assets.make_folder(path.parent)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o664)


def _is_locked(descriptor: int, name: str) -> bool:
    """Locks the byte of a name; returns False if another process holds it."""
    place = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big") % _PLACES
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
    except (BlockingIOError, PermissionError):  # POSIX allows either
        return False
    except OSError:  # a file system without locks
        return True
    return True
