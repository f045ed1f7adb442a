"""The results that a test run's processes make once: the first makes them, the others read them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.support.cuda_on_cpu import SHARED

_Made = TypeVar("_Made")


def made_once(name: str, make: Callable[[], _Made]) -> _Made:
    """Returns what `make` returns in the first process that asks for this name; the others wait for
    it. Where no folder is shared, each process makes its own."""
    if not (folder := os.environ.get(SHARED)):
        return make()
    path = Path(folder) / f"{hashlib.sha256(name.encode()).hexdigest()}.pickle"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_bytes(pickle.dumps(make()))
        made: _Made = pickle.loads(path.read_bytes())
    return made
