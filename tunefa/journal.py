"""The journal of a search: one JSON line per trial, on disk before the next trial begins."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any

from tunefa import assets
from tunefa.errors import TunefaError
from tunefa.trial import Trial

SCHEMA = 1


def folder() -> Path:
    """Where this user's journals are."""
    return assets.home() / "journals"


class Journal:
    """Appends trials to a file of its own. A context manager.

    The first line holds the search's header (what was asked, with which tools), every later one a
    kernel's name and a trial.
    """

    def __init__(self, name: str, header: Mapping[str, Any]):
        """`name` begins the file's name. Raises TunefaError where the folder cannot be written."""
        stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
        self.path = folder() / f"{stamp}-{name}-{secrets.token_hex(2)}.jsonl"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "x", encoding="utf-8")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise self._cannot_write(error) from error
        self._append({"tunefa_journal": SCHEMA, **header})

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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


def read(path: Path) -> Iterator[tuple[str, Trial]]:
    """(kernel, trial) of every trial in a journal.

    A torn last line, which a crash leaves, ends the journal. Raises TunefaError with file and line
    for a missing file, one that is no journal or a newer tunefa's, and for a line in the middle
    that does not hold.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TunefaError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TunefaError(f"{path} is no journal: it is not UTF-8 text") from error
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            if number > 1:
                yield entry.pop("kernel"), Trial.from_dict(entry)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            if number == len(lines):
                return
            raise TunefaError(f"{path}:{number}: this line is no trial: {error}") from error
        if number == 1:
            _check_header(entry, path)


def _check_header(entry: Any, path: Path) -> None:
    schema = entry.get("tunefa_journal") if isinstance(entry, dict) else None
    if not isinstance(schema, int):
        raise TunefaError(f"{path}:1: this is no journal of tunefa: its first line says so in one")
    if schema > SCHEMA:
        raise TunefaError(
            f"{path}:1: was written by a newer tunefa (schema {schema}, this one reads up to "
            f"{SCHEMA}): upgrade tunefa"
        )
