"""The lock of a study's file: the system removes it when its process dies, whatever kills it.

Optuna's own locks are files that a killed process leaves behind, for half a minute.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from optuna.storages.journal._file import BaseJournalFileLock


class FileLock(BaseJournalFileLock):
    """Locks a file beside the study's. Who gets the lock removes half a line that a killed process
    has left at the end of the study."""

    def __init__(self, path: Path) -> None:
        """`path` is that of the study."""
        self._path = path
        self._held: int | None = None

    def acquire(self) -> bool:
        """Waits for the lock. Raises OSError if the folder cannot be written."""
        descriptor = os.open(f"{self._path}.flock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o664)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._mend()
        except BaseException:
            os.close(descriptor)
            raise
        self._held = descriptor
        return True

    def release(self) -> None:
        """Gives the lock back."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def _mend(self) -> None:
        with open(self._path, "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if not size:
                return
            file.seek(size - 1)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
