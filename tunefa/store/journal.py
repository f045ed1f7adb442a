"""The journal of a search: one JSON line per trial, on disk before the next trial begins."""

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
"""Version of journals; those of 1 have other names for parameters."""
COMPRESSED = ".xz"
"""Suffix of journals that are kept to be read only."""
_STAMP = len("20261120T165639")


def folder() -> Path:
    """Where this user's journals are."""
    return assets.home() / "journals"


class Journal:
    """Appends trials to a file of its own. A context manager.

    The first line holds the search's header (what was asked, with which tools), every later one a
    kernel's name and a trial. The file is locked while it is open, and no longer than that: the
    system takes the lock from a process that dies.
    """

    def __init__(self, name: str, header: Mapping[str, Any]):
        """`name` begins the file's name. Raises TunefaError where the folder cannot be written."""
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
        """The journal at `path`, to append to; a torn last line is cut off.

        Raises TunefaError as `read` does, when another search is still writing the file, and for a
        compressed one.
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
        """Leaves only whole lines."""
        end = max((end for end, _ in _entries(self.path)), default=0)
        if end == 0:
            raise TunefaError(f"{self.path} has no whole first line: nothing can be continued")
        self._file.truncate(end)
        self._file.seek(end - 1)
        if self._file.read() != "\n":  # the line is whole, only its end was not written
            self._file.write("\n")

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, kernel: str, trial: Trial) -> None:
        """Writes one trial through to the disk. Raises TunefaError when the disk is full."""
        self._append({"kernel": kernel, **trial.to_dict()})

    def _append(self, entry: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):  # it flushes what could not be written once more
                self._file.close()
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> TunefaError:
        return TunefaError(
            f"the journal {self.path} cannot be written: {error.strerror}: "
            f"free space or set TUNEFA_HOME to another folder"
        )


def paths() -> list[Path]:
    """This user's journals, the newest first."""
    found = [(path.name[:_STAMP], _changed(path), path) for path in folder().glob("*.jsonl")]
    return [path for *_, path in sorted(found, reverse=True)]


def _changed(path: Path) -> int:
    """Tells apart those that began in the same second; 0 for one that was just deleted."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


def header(path: Path) -> dict[str, Any]:
    """What a journal says of its search; empty where a crash has torn it. Raises as `read` does."""
    for _, entry in _entries(path):
        found: dict[str, Any] = entry
        return found
    return {}


def read(path: Path) -> Iterator[tuple[str, Trial]]:
    """(kernel, trial) of every trial in a journal.

    A torn last line, which a crash leaves, ends the journal. Raises TunefaError with file and line
    for a missing file, one that is no journal or a newer tunefa's, and for a line in the middle
    that does not hold. One that ends in .xz is unpacked first, and must be whole.
    """
    entries = _entries(path)
    next(entries, None)
    for _, entry in entries:
        yield entry


def _entries(path: Path) -> Iterator[tuple[int, Any]]:
    """(where its line ends, what it holds) of every whole line: a header, then (kernel, trial)."""
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
                raise TunefaError(f"{path} is no journal: it is not UTF-8 text") from error
            if number == len(lines):
                return
            what = "trial" if number > 1 else "first line of a journal"
            raise TunefaError(f"{path}:{number}: this line is no {what}: {error}") from error
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
        raise TunefaError(f"{path} is torn or no .xz file ({error}): get it anew") from error


def _schema(entry: Any, path: Path) -> int:
    """The version that a journal's header names. Raises TunefaError for no journal or a newer."""
    schema = entry.get("tunefa_journal") if isinstance(entry, dict) else None
    if not isinstance(schema, int):
        raise TunefaError(f"{path}:1: this is no journal of tunefa: its first line says so in one")
    if schema > SCHEMA:
        raise TunefaError(
            f"{path}:1: was written by a newer tunefa (schema {schema}, this one reads up to "
            f"{SCHEMA}): upgrade tunefa"
        )
    return schema
