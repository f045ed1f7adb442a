"""Formats that records can be exported to, and partly imported from.

A format is a module in this folder, found by its file name, with `SUFFIXES`, `DESCRIPTION` and
`dump`. It has `load` if it can be read, and `holds(record) -> bool` if it cannot write every
record; then `dump` leaves out the others, with a comment. If a file does not say for which chip an
entry is, `dump` raises TunefaError for records of several archs.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from tunefa.errors import TunefaError, unknown
from tunefa.store.record import Record


class Format(Protocol):
    """The interface of a format's module."""

    SUFFIXES: tuple[str, ...]
    """The suffixes of its files, with their dots."""
    DESCRIPTION: str
    """One line for the help text."""

    def dump(self, records: Sequence[Record]) -> str:
        """Returns the text of a file with these records."""


class ReadableFormat(Format, Protocol):
    """The interface of a format's module, if the format can be read."""

    def load(self, text: str, where: str) -> list[Record]:
        """Returns the records in `text`. Raises TunefaError, which begins with `where`."""


def names() -> list[str]:
    """Returns the names of all formats, sorted."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in modules if not name.startswith("_"))


def get(name: str) -> Format:
    """Returns the format with this name. Raises TunefaError if there is none."""
    if name not in names():
        raise unknown("format", name, names())
    return cast(Format, import_module(f"{__name__}.{name}"))


def readable(name: str) -> ReadableFormat:
    """Returns the format with this name. Raises TunefaError if it is unknown or cannot be read."""
    found = get(name)
    if not hasattr(found, "load"):
        known = ", ".join(each for each in names() if hasattr(get(each), "load"))
        raise TunefaError(f"format {name!r} can be written but not read: read one of {known}")
    return cast(ReadableFormat, found)


def for_path(path: Path | str) -> str:
    """Returns the name of the format that a file's suffix means; the longest suffix decides.

    Raises TunefaError if no format has the suffix.
    """
    known, suffix = _suffixes(), _suffix(path)
    if suffix is None:
        raise TunefaError(
            f"the name {str(path)!r} does not say which format it is: end it in one of "
            f"{', '.join(sorted(known))}, or name the format"
        )
    return known[suffix]


def check_suffix(path: Path | str, name: str) -> None:
    """Raises TunefaError if the suffix of `path` means another format than `name`.

    A suffix that no format has contradicts none. Nor does the end of a longer suffix: `.py` fits
    `.triton.py`.
    """
    own, suffix = get(name).SUFFIXES, _suffix(path)
    if suffix is None or any(each.endswith(suffix) for each in own):
        return
    raise TunefaError(
        f"{path} is the name of a file in the format {_suffixes()[suffix]}, not {name}: end it in "
        f"{' or '.join(own)}, or name no format"
    )


def _suffixes() -> dict[str, str]:
    """The name of a format by suffix."""
    return {suffix: name for name in names() for suffix in get(name).SUFFIXES}


def _suffix(path: Path | str) -> str | None:
    """The longest known suffix of a file's name; None if it has none."""
    file_name = Path(path).name.lower()
    fitting = [suffix for suffix in _suffixes() if file_name.endswith(suffix)]
    return max(fitting, key=len, default=None)
