"""The journal of a search: one line of JSON per trial, written to disk before the next trial."""

from __future__ import annotations

import contextlib
import fcntl
import json
import lzma
import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tunefa import assets
from tunefa.errors import TunefaError
from tunefa.spec.trial import Trial
from tunefa.store import schema1

SCHEMA = 2
"""The version of journals. Version 1 has other names for parameters: see `schema1`."""
COMPRESSED = ".xz"
"""The suffix of compressed journals, which can be read but not continued."""
_STAMP = len("20261120T165639")


def folder() -> Path:
    """Returns the folder of this user's journals."""
    return assets.home() / "journals"


class Journal:
    """A journal that is being written. A context manager.

    The first line is the header (what is searched, and with which tools). Each other line is a
    kernel's name and a trial. The file is locked while it is open; if the process dies, the system
    removes the lock.
    """

    def __init__(self, name: str, header: Mapping[str, Any]):
        """Creates a journal with `name` in its file's name.

        Raises TunefaError if the folder cannot be written.
        """
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
        self.path = folder() / f"{stamp}-{name}-{secrets.token_hex(4)}.jsonl"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "x", encoding="utf-8")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise self._cannot_write(error) from error
        self._lock()
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
        end = max((end for end, _ in _entries(self.path)), default=0)
        if end == 0:
            raise TunefaError(f"{self.path} has no complete first line: it cannot be continued")
        self._file.truncate(end)
        self._file.seek(end - 1)
        if self._file.read() != "\n":  # the entry is complete, only its newline is missing
            self._file.write("\n")

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, kernel: str, trial: Trial) -> None:
        """Writes one trial to the disk. Raises TunefaError if it cannot be written."""
        self._append({"kernel": kernel, **trial.to_dict()})

    def _append(self, entry: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):  # closing tries to write the rest again
                self._file.close()
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> TunefaError:
        return TunefaError(
            f"the journal {self.path} cannot be written: {error.strerror}: "
            f"free space or set TUNEFA_HOME to another folder"
        )


def paths() -> list[Path]:
    """Returns the paths of this user's journals, the newest first."""
    found = [(path.name[:_STAMP], _changed(path), path) for path in folder().glob("*.jsonl")]
    return [path for *_, path in sorted(found, reverse=True)]


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


def read(path: Path) -> Iterator[tuple[str, Trial]]:
    """Yields (kernel, trial) for every trial in a journal, which may be compressed (.xz).

    A crash may leave an incomplete last line, which is ignored. Raises TunefaError, with file and
    line, if the file is missing, is not a journal or a newer tunefa's, or if another line is not
    valid.
    """
    entries = _entries(path)
    next(entries, None)
    for _, entry in entries:
        yield entry


def _entries(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields (offset of its end, entry) of each complete line: header, then (kernel, trial)."""
    lines = _content(path).splitlines(keepends=True)
    end, schema = 0, SCHEMA
    for number, line in enumerate(lines, start=1):
        end += len(line)
        try:
            entry = json.loads(line.decode())
            if number > 1:
                entry = _trial(entry, schema)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number == 1 and isinstance(error, UnicodeDecodeError):
                raise TunefaError(f"{path} is not a journal: it is not UTF-8 text") from error
            if number == len(lines):
                return
            what = "a trial" if number > 1 else "the first line of a journal"
            raise TunefaError(f"{path}:{number}: this line is not {what}: {error}") from error
        if number == 1:
            schema = _schema(entry, path)
        yield end, entry


def _trial(entry: dict[str, Any], schema: int) -> tuple[str, Trial]:
    kernel = entry.pop("kernel")
    if schema == 1:
        entry["config"] = schema1.config(kernel, entry["config"])
    return kernel, Trial.from_dict(entry)


def _content(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return lzma.decompress(content) if path.suffix == COMPRESSED else content
    except OSError as error:
        raise TunefaError(f"{path} cannot be read: {error.strerror}") from error
    except lzma.LZMAError as error:
        raise TunefaError(
            f"{path} is incomplete or no .xz file ({error}): copy it again"
        ) from error


def _schema(entry: Any, path: Path) -> int:
    """Returns the version in a journal's header. Raises TunefaError for none or a newer one."""
    schema = entry.get("tunefa_journal") if isinstance(entry, dict) else None
    if not isinstance(schema, int):
        raise TunefaError(f"{path}:1: this is not a journal of tunefa: it has no header")
    if schema > SCHEMA:
        raise TunefaError(
            f"{path}:1: was written by a newer tunefa (schema {schema}, this one reads up to "
            f"{SCHEMA}): upgrade tunefa"
        )
    return schema
