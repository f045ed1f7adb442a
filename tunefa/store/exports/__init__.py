"""Formats that records can be exported to, and partly imported from; and formats of trials.

A format is a module in this folder, found by its file name, with `SUFFIXES`, `DESCRIPTION` and
`dump`. It has `load` if it can be read, and `holds(record) -> bool` if it cannot write every
record; then `dump` leaves out the others, with a comment. If a file does not say for which chip an
entry is, `dump` raises TunefaError for records of several archs.

A format that holds all trials of a journal instead has `dump_trials` and no `dump`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from tunefa.errors import TunefaError, unknown
from tunefa.store.landscape import Landscape
from tunefa.store.record import Record


class Format(Protocol):
    """The interface of a format's module."""

    SUFFIXES: tuple[str, ...]
    """The suffixes of its files, with their dots."""
    DESCRIPTION: str
    """One line for the help text."""

    def dump(self, records: Sequence[Record]) -> str:
        """Returns the text of a file with these records."""


class TrialsFormat(Protocol):
    """The interface of a format's module, if it holds the trials of a journal."""

    SUFFIXES: tuple[str, ...]
    DESCRIPTION: str

    def dump_trials(self, landscape: Landscape, kernel: str) -> str:
        """Returns the text of a file with all trials of a kernel."""


class ReadableFormat(Format, Protocol):
    """The interface of a format's module, if the format can be read."""

    def load(self, text: str, where: str) -> list[Record]:
        """Returns the records in `text`. Raises TunefaError, which begins with `where`."""


def names() -> list[str]:
    """Returns the names of all formats, sorted."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if not name.startswith("_"))


def get(name: str) -> Format:
    """Returns the format of records with this name.

    Raises TunefaError if there is none, and if the format holds trials.
    """
    found = _module(name)
    if not hasattr(found, "dump"):
        raise TunefaError(
            f"format {name!r} holds the trials of a journal, not records: write it with 'tunefa "
            f"export FILE{found.SUFFIXES[0]} --journal JOURNAL'"
        )
    return cast(Format, found)


def of_trials(name: str) -> TrialsFormat | None:
    """Returns the format with this name if it holds trials; None for a format of records.

    Raises TunefaError if there is none.
    """
    found = _module(name)
    return cast(TrialsFormat, found) if hasattr(found, "dump_trials") else None


def _module(name: str) -> ModuleType:
    if name not in names():
        raise unknown("format", name, names())
    return import_module(f"{__name__}.{name}")


def readable(name: str) -> ReadableFormat:
    """Returns the format with this name. Raises TunefaError if it is unknown or cannot be read."""
    found = _module(name)
    if not can_be_read(name):
        known = ", ".join(filter(can_be_read, names()))
        raise TunefaError(f"format {name!r} can be written but not read: read one of {known}")
    return cast(ReadableFormat, found)


def can_be_read(name: str) -> bool:
    """Whether the format with this name can be read. Raises TunefaError if there is none."""
    return hasattr(_module(name), "load")


def for_path(path: Path | str) -> str:
    """Returns the name of the format that a file's suffix means; the longest suffix decides.

    Raises TunefaError if no format has the suffix.
    """
    known, suffix = _suffixes(), _suffix(path)
    if suffix is None:
        raise TunefaError(
            f"the name {str(path)!r} does not say which format it is: end it in one of "
            f"{', '.join(sorted(known))}"
        )
    return known[suffix]


def for_records(path: Path | str) -> str:
    """Returns what `for_path` returns. Raises TunefaError if that format holds trials, too."""
    name = for_path(path)
    get(name)
    return name


def check_suffix(path: Path | str, name: str) -> None:
    """Raises TunefaError if the suffix of `path` means another format than `name`.

    A suffix that no format has contradicts none. Nor does the end of a longer suffix: `.py` fits
    `.triton.py`.
    """
    own, suffix = _module(name).SUFFIXES, _suffix(path)
    if suffix is None or any(each.endswith(suffix) for each in own):
        return
    raise TunefaError(
        f"{path} is the name of a file in the format {_suffixes()[suffix]}, not {name}: end it in "
        f"{' or '.join(own)}, or name no format"
    )


def _suffixes() -> dict[str, str]:
    """The name of a format by suffix."""
    return {suffix: name for name in names() for suffix in _module(name).SUFFIXES}


def _suffix(path: Path | str) -> str | None:
    """The longest known suffix of a file's name; None if it has none."""
    file_name = Path(path).name.lower()
    fitting = [suffix for suffix in _suffixes() if file_name.endswith(suffix)]
    return max(fitting, key=len, default=None)
