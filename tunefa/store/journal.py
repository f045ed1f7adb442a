"""The journal of a search: one line of JSON per trial, written to disk before the next trial.

Each line ends with a checksum of what stands before it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import lzma
import math
import os
import secrets
import time
import warnings
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tunefa import assets
from tunefa.errors import TunefaError
from tunefa.spec import regular_file
from tunefa.spec.trial import Trial
from tunefa.store import added_parameters, checksum, journal_header, schema1, trial_data, trust
from tunefa.store.journal_header import CHECKSUM, SCHEMA, Limits

ELAPSED = "elapsed_s"
"""The key of the seconds since the search began."""
COMPRESSED = ".xz"
"""The suffix of compressed journals, which can be read but not continued."""
_STAMP = len("20261120T165639")


def folder() -> Path:
    """Returns the folder of this user's journals."""
    return assets.home() / "journals"


class Journal:
    """A journal that is being written. A context manager.

    The first line is the header (what is searched, and with which tools). Each other line is a
    kernel's name, the seconds since the search began, and a trial. The file is locked while it is
    open; if the process dies, the system removes the lock.
    """

    def __init__(self, name: str, header: Mapping[str, Any]):
        """Creates a journal with `name` in its file's name.

        Raises TunefaError if the folder cannot be written.
        """
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
        self.path = folder() / f"{stamp}-{name}-{secrets.token_hex(4)}.jsonl"
        try:
            assets.make_folder(self.path.parent)
            self._file = open(  # noqa: SIM115 - closed by __exit__
                self.path, "x", encoding="utf-8", opener=_for_this_user
            )
        except OSError as error:
            raise self._cannot_write(error) from error
        self._lock()
        self._began: float | None = time.monotonic()
        self._append({"tunefa_journal": SCHEMA, **header})

    @classmethod
    def reopened(cls, path: Path) -> Journal:
        """Returns the journal at `path`, to append to. An incomplete last line is removed.

        Raises TunefaError if another search is still writing the file, if it is compressed, and
        where `read` raises it.
        """
        if path.suffix == COMPRESSED:
            raise TunefaError(f"{path} is compressed and cannot be continued: unpack it with unxz")
        journal = cls.__new__(cls)
        journal.path = path
        try:
            journal._file = open(path, "r+", encoding="utf-8", newline="\n")  # noqa: SIM115
        except OSError as error:
            raise journal._cannot_write(error) from error
        try:
            journal._lock()
            journal._cut()
        except OSError as error:
            journal._file.close()
            raise journal._cannot_write(error) from error
        except TunefaError:
            journal._file.close()
            raise
        return journal

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise TunefaError(
                f"a search that still runs writes the journal {self.path}: wait for it, or end it"
            ) from error
        except OSError:  # a file system without locks
            return

    def _cut(self) -> None:
        """Removes an incomplete last line."""
        entries = list(_entries(self.path))
        end = entries[-1][0] if entries else 0
        if end == 0:
            raise TunefaError(f"{self.path} has no complete first line: it cannot be continued")
        self._file.truncate(end)
        self._file.seek(end - 1)
        if self._file.read() != "\n":  # the entry is complete, only its newline is missing
            self._file.write("\n")
        # A continued search goes on where the last trial was written; nobody knows where that was
        # in a journal of an older tunefa.
        past = [seconds for _, (*_, seconds) in entries[1:]]
        known = max([0.0, *(seconds for seconds in past if seconds is not None)])
        self._began = None if None in past else time.monotonic() - known

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, kernel: str, *trials: Trial) -> None:
        """Writes trials to the disk, all at once. Raises TunefaError if they cannot be written."""
        began, timed = self._began, {}
        if began is not None:
            timed = {ELAPSED: round(time.monotonic() - began, 3)}
        self._append(*({"kernel": kernel, **timed, **trial.to_dict()} for trial in trials))

    def _append(self, *entries: Mapping[str, Any]) -> None:
        try:
            self._file.write("".join(map(_line, entries)))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):  # closing tries to write the rest again
                self._file.close()
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> TunefaError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return TunefaError(
            f"the journal {self.path} cannot be written: {error.strerror}: "
            f"{'free space or ' if full else ''}set TUNEFA_HOME to another folder"
        )


def _for_this_user(name: str, flags: int) -> int:
    """Opens a new file that other users cannot write, whatever the umask is."""
    return os.open(name, flags, 0o664)


def paths() -> list[Path]:
    """Returns the paths of this user's journals, the newest first.

    Those that another user may have written are left out, with a warning.
    """
    found = [(path.name[:_STAMP], _changed(path), path) for path in folder().glob("*.jsonl")]
    ordered = [path for *_, path in sorted(found, reverse=True)]
    trusted, reasons = trust.among(ordered, folder())
    for reason in reasons:
        warnings.warn(f"journal left out: {reason}", stacklevel=2)
    return trusted


def _changed(path: Path) -> int:
    """Returns the time of the last change, to order journals of one second; 0 if deleted."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def header(path: Path) -> dict[str, Any]:
    """Returns the header of a journal; empty if it is incomplete. Raises what `read` raises."""
    for _, entry in _entries(path):
        found: dict[str, Any] = entry
        return found
    return {}


def _line(entry: Mapping[str, Any]) -> str:
    """Returns the line of an entry, with its checksum."""
    return json.dumps({**entry, CHECKSUM: checksum.of(json.dumps(entry))}) + "\n"


def read(path: Path) -> Iterator[tuple[str, Trial]]:
    """Yields (kernel, trial) for every trial in a journal, which may be compressed (.xz).

    Raises what `read_timed` raises.
    """
    for kernel, trial, _ in read_timed(path):
        yield kernel, trial


def read_timed(path: Path) -> Iterator[tuple[str, Trial, float | None]]:
    """Yields (kernel, trial, seconds since the search began) for every trial in a journal.

    The seconds are None in journals of schemas before 4. Those of a search that was continued do
    not count the time between its runs.

    A crash may leave an incomplete last line, which is ignored. Raises TunefaError, with file and
    line, if the file is missing, is not a journal or a newer tunefa's, or if another line is not
    what a search writes.
    """
    entries = _entries(path)
    next(entries, None)
    for _, entry in entries:
        yield entry


def _entries(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields (offset of its end, entry) of each complete line: header, then (kernel, trial, seconds
    since the search began)."""
    lines = _content(path).splitlines(keepends=True)
    end, limits = 0, Limits()
    for number, line in enumerate(lines, start=1):
        end += len(line)
        where = f"{path}:{number}"
        try:
            entry = _parsed(line, where)
            if number > 1:
                entry = _trial(entry, limits, where)
        except (ValueError, RecursionError) as error:
            if number == 1 and isinstance(error, UnicodeDecodeError):
                raise TunefaError(f"{path} is not a journal: it is not UTF-8 text") from error
            if number == len(lines):
                return
            what = "a trial" if number > 1 else "the first line of a journal"
            raise TunefaError(f"{where}: this line is not {what}: {error}") from error
        if number == 1:
            limits = journal_header.check(entry, where)
        yield end, entry


def _parsed(line: bytes, where: str) -> Any:
    """Returns the entry in a line. Raises ValueError if it is not JSON, TunefaError if altered."""
    entry = json.loads(line.decode(), object_pairs_hook=_unique)
    written = entry.pop(CHECKSUM, None) if isinstance(entry, dict) else None
    if written is not None and written != checksum.of(json.dumps(entry)):
        raise TunefaError(
            f"{where}: this line was changed since it was written, as its checksum says: remove "
            "the line, or search again"
        )
    return entry


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a mapping. Raises ValueError for a key that is there twice: two lines became one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _trial(entry: Any, limits: Limits, where: str) -> tuple[str, Trial, float | None]:
    kernel = entry.pop("kernel", None) if isinstance(entry, dict) else None
    if not isinstance(kernel, str):
        raise ValueError("it names no kernel")
    seconds = entry.pop(ELAPSED, None)
    if seconds is not None and not (type(seconds) in (int, float) and 0 <= seconds < math.inf):
        raise ValueError(f"{ELAPSED} must be a number of at least 0, not {seconds!r:.60}")
    if isinstance(entry.get("config"), dict):
        if limits.schema == 1:
            entry["config"] = schema1.config(kernel, entry["config"])
        entry["config"] = added_parameters.completed(kernel, entry["config"])
    trial = trial_data.read(entry)
    if why := limits.why_not(trial):
        raise TunefaError(f"{where}: this trial cannot be true: {why}: remove the line")
    return kernel, trial, seconds


def _content(path: Path) -> bytes:
    try:
        content = regular_file.content(path)
        return lzma.decompress(content) if path.suffix == COMPRESSED else content
    except OSError as error:
        raise TunefaError(f"{path} cannot be read: {error.strerror}") from error
    except lzma.LZMAError as error:
        raise TunefaError(
            f"{path} is incomplete or no .xz file ({error}): copy it again"
        ) from error
