"""The lock of a store: one sweep at a time writes to it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from tunefa import assets


def path() -> Path:
    """Returns the file that the process of a sweep locks."""
    return assets.home() / "sweeps" / ".running"


def is_taken() -> bool:
    """Returns whether a sweep runs on this store, as far as its file can be read."""
    try:
        descriptor = os.open(path(), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
